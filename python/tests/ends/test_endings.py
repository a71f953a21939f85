"""How a job ends, and the reports of it to all ranks: against a library in Python."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import unittest
from unittest import mock

import torch
from torch.utils.data import DataLoader
from with_fake import TwoLayers, WithFake

import tributary.torch as trib
from tributary import JobStopped, NotSaved, Unavailable
from tributary._errors import Status
from tributary._library import Leave, Step
from tributary.torch._base.log import logger
from tributary.torch._model.parallel import Part
from tributary.torch._run.program import program


class Ends(WithFake):
    def test_all_is_left_cleanly(self) -> None:
        opt = self.make()
        self.train(opt)
        session = self.library.session
        opt.finish()
        self.assertEqual(session.left, (Leave.FINISHED, ""))
        self.assertTrue(session.was_saved and session.destroyed)
        self.backward()  # hooks do nothing any more
        with self.assertRaisesRegex(RuntimeError, "is finished"):
            opt.step()

    def test_one_rank_ends_training_for_all(self) -> None:
        data = torch.utils.data.TensorDataset(torch.randn(40, 4))
        evaluation = DataLoader(data, batch_size=8, sampler=trib.DistributedSampler(data, shuffle=False))
        for own_word in (True, False):  # this rank's, or another's
            with self.subTest(own_word=own_word):
                self.anew()
                if not own_word:
                    self.library.events[3] = "trained"
                opt = self.make()
                session = self.library.session
                loader = DataLoader(data, batch_size=8, sampler=trib.DistributedSampler(data, seed=1))
                epochs, passes = [], 0
                for epoch in trib.epochs(10):
                    epochs.append(epoch)
                    for (x,) in loader:
                        self.net(x).square().mean().backward()
                        opt.step()
                        opt.zero_grad()
                        passes += 1
                        if own_word and opt.round == 2:
                            trib.stop("it is good enough")
                            self.assertIsNone(session.left)  # its calls are still answered in this iteration
                            self.assertEqual(trib.all_reduce(2.0), 2.0)
                self.assertEqual((epochs, opt.round), ([0], 2))
                self.assertEqual(passes, 2 if own_word else 3)
                says = (Leave.FINISHES_ALL, "rank 0 ended training: it is good enough")
                self.assertEqual(session.left, says if own_word else (Leave.FINISHED, ""))
                self.assertTrue(session.was_saved and session.destroyed)
                torch.testing.assert_close(self.values()[0].flatten(), torch.tensor(self.library.last[0]))
                self.assertEqual(list(loader), [])
                self.assertEqual(list(trib.rounds(10)), [])
                self.assertEqual(len(list(evaluation)), 5)
                with self.assertRaises(trib.Stopped) as caught:
                    opt.step()
                self.assertEqual(caught.exception.code, 0)

    def test_a_loop_over_a_stream_ends_when_training_does(self) -> None:
        for own_word in (True, False):
            with self.subTest(own_word=own_word):
                self.anew()
                if not own_word:
                    self.library.gather_events[2] = "trained"  # when it asks for its third batch
                opt = self.make()
                stream = [torch.randn(5, 4) for _ in range(6)]
                for _ in trib.epochs(3):
                    for x in trib.batches(stream):
                        self.net(x).square().mean().backward()
                        opt.step()
                        opt.zero_grad()
                        if own_word and opt.round == 2:
                            trib.stop("it is good enough")
                self.assertEqual((opt.round, len(self.library.pushes)), (2, 2))
                self.assertTrue(self.library.session.was_saved)
                self.library.pushes.clear()

    def test_a_loop_without_our_sampler_is_ended_by_its_next_step(self) -> None:
        opt = self.make()
        self.train(opt, 2)
        trib.stop("enough")
        with self.assertRaises(trib.Stopped) as caught:
            self.train(opt)
        self.assertEqual((caught.exception.code, opt.round, len(self.library.pushes)), (0, 2, 2))

    def test_local_steps_end_when_training_does(self) -> None:
        data = torch.utils.data.TensorDataset(torch.randn(40, 4))
        for sampled in (True, False):
            with self.subTest(sampled=sampled):
                self.anew()
                self.library.events[3] = "trained"
                inner = torch.optim.SGD(self.net.parameters(), lr=0.1)
                passes = 0

                def train(x: torch.Tensor, inner: torch.optim.Optimizer = inner) -> None:
                    self.net(x).square().mean().backward()
                    inner.step()
                    inner.zero_grad()

                with trib.DiLoCo(self.net, inner, sync_every=2) as job:
                    if sampled:
                        for (x,) in DataLoader(data, batch_size=4, sampler=trib.DistributedSampler(data, seed=1)):
                            train(x)
                            passes += 1
                    else:
                        with self.assertRaises(trib.Stopped) as caught:
                            while True:
                                passes += 1
                                train(torch.randn(4, 4))
                        self.assertEqual(caught.exception.code, 0)
                self.assertEqual((job.round, passes), (2, 6 if sampled else 8))
                self.assertTrue(self.library.session.was_saved)

    def test_a_program_that_ends_first_says_so_for_all(self) -> None:
        opt = self.make()
        session = self.library.session
        self.train(opt)
        trib.stop("enough")
        opt.finish()
        self.assertEqual(session.left, (Leave.FINISHES_ALL, "rank 0 ended training: enough"))

    def test_who_cannot_end_training_for_all(self) -> None:
        with self.assertRaisesRegex(RuntimeError, "no open job"):
            trib.stop("enough")
        self.make()
        with self.assertRaisesRegex(ValueError, "say why"):
            trib.stop("")
        together = mock.patch.object(Part, "starts_together", property(lambda part: True))
        with together, self.assertRaisesRegex(RuntimeError, "have a process group .*tributary.torch.all_reduce"):
            trib.stop("enough")
        self.assertIsNone(program.loop.ended)

    def test_an_exception_ends_the_job_as_failed(self) -> None:
        self.make()
        session = self.library.session
        with mock.patch.object(program, "_failure", "ValueError: bad batch"):
            program.end()
        self.assertEqual(session.left, (Leave.FAILED, "ValueError: bad batch"))

    def test_an_exit_status_ends_the_job_as_failed(self) -> None:
        for status, left in (
            (3, Leave.FAILED),
            ("bad batch", Leave.FAILED),
            (0, Leave.FINISHED),
            (None, Leave.FINISHED),
        ):
            with self.subTest(status), mock.patch.object(program, "_failure", None):
                self._leave()
                self.make()
                session = self.library.session
                with self.assertRaises(SystemExit) as caught:
                    sys.exit(status)
                self.assertEqual(caught.exception.code, status)
                program.end()
                self.assertEqual(session.left, (left, f"sys.exit({status!r})" if status else ""))

    def test_an_exit_that_somebody_catches_is_none_if_the_program_trains_on(self) -> None:
        for code, left in (
            ("exits(2)", Leave.FAILED),
            ("exits(2)\n    test.train(opt)", Leave.FINISHED),
            ("exits(2)\n    sys.exit(3)", Leave.FAILED),
            ("sys.exit(2)", Leave.FAILED),
            ("exits(2)\n    sys.exit(0)", Leave.FINISHED),
        ):
            text = (
                "import sys\n"
                "from with_fake import WithFake\n"
                "def exits(status):\n"
                "    try:\n"
                "        sys.exit(status)\n"
                "    except SystemExit:\n"
                "        pass\n"
                "test = WithFake()\n"
                "test.setUp()\n"
                "opt = test.make(name='x')\n"
                "session = test.library.session\n"
                "import atexit\n"
                "from tributary.torch._run.program import program\n"
                "atexit.unregister(program.end)\n"
                "atexit.register(lambda: (program.end(), print(session.left[0].name)))\n"
                f"if True:\n    {code}\n"
            )
            with self.subTest(code):
                ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
                self.assertEqual(ran.stdout.strip(), left.name, ran.stderr)

    def test_what_ends_a_program_that_is_to_stop_is_a_stop(self) -> None:
        self.addCleanup(setattr, program, "_stopped", False)
        self.addCleanup(setattr, program, "_failure", None)

        class Broken:
            def __len__(self) -> int:
                return 8

            def __getitem__(self, index: int) -> int:
                raise ConnectionResetError("the other side is gone")

        def load() -> None:
            next(iter(DataLoader(Broken())))

        def compute() -> None:
            raise ConnectionResetError("the other side is gone")

        for what, signalled, stops, shown in (
            (load, "late", True, 0),  # the signal comes to this process last
            (load, "never", False, 1),
            (compute, "before", True, 0),
            (compute, "never", False, 1),
        ):
            with self.subTest(what.__name__, signalled=signalled):
                self.anew()
                program._failure = None
                program._stopped = False
                shows = mock.Mock()
                with mock.patch("sys.excepthook", shows), mock.patch.object(program, "_hooked", False):
                    self.train(self.make(), 2)
                    hook = sys.excepthook
                session = self.library.session
                if signalled == "before":
                    os.kill(os.getpid(), signal.SIGTERM)
                try:
                    what()
                except ConnectionResetError as error:
                    if signalled == "late":
                        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
                    hook(type(error), error, error.__traceback__)
                self.assertEqual(shows.call_count, shown)
                with mock.patch("os._exit", side_effect=SystemExit) as ended:
                    try:
                        program.end()
                    except SystemExit:
                        ended.assert_called_once_with(75)
                why = "rank 0 was told to stop (SIGTERM)" if stops else "ConnectionResetError: the other side is gone"
                self.assertEqual(session.left, (Leave.STOPPED if stops else Leave.FAILED, why))
                self.assertEqual(session.was_saved, stops)

    def test_a_program_that_trains_nothing_says_so(self) -> None:
        self.train(self.make(name="done"), 3)
        with self.assertNoLogs(logger, "WARNING"):
            program.finish()
        opt = self.make(name="done")
        with self.assertLogs(logger, "WARNING") as logs:
            opt.finish()
        self.assertRegex(logs.output[0], "job 'done' was at round 3 .* no round was trained: .*--fresh")

    def test_a_state_that_is_not_saved_is_said_once(self) -> None:
        opt = self.make()
        session = self.library.session
        session.saved = mock.Mock(side_effect=NotSaved("disk full", Status.STORE))
        with self.assertRaisesRegex(NotSaved, "disk full"):
            opt.finish()
        self.assertTrue(session.destroyed)
        program.end()
        session.saved.assert_called_once()

    def test_rounds_that_are_lost_at_the_end_are_no_end(self) -> None:
        opt = self.make()
        self.train(opt, 3)

        def lose() -> None:
            del self.library.rounds[2:]
            raise Unavailable("server 0 is gone", Status.UNAVAILABLE)

        self.library.session.saved = lose  # type: ignore[method-assign]
        with self.assertRaises(trib.Stopped) as caught:
            opt.finish()
        self.assertIn("the rounds after 1 were lost", caught.exception.reason)
        self.assertEqual(self.library.session.left[0], Leave.STOPPED)

    def test_gradients_without_a_step_are_said(self) -> None:
        opt = self.make()
        self.train(opt)
        self.backward()
        with self.assertLogs(logger, "WARNING") as logs:
            opt.finish()
        self.assertIn("gradients of round 2 have left, and no step() followed", logs.output[0])

    def test_a_thread_in_a_step_is_left_alone(self) -> None:
        opt = self.make()
        session = self.library.session
        ended = mock.Mock(side_effect=SystemExit)
        with opt._link.report.watch.waiting(1), mock.patch("os._exit", ended), self.assertRaises(SystemExit):
            program.end()
        ended.assert_called_once_with(1)
        self.assertFalse(session.destroyed)
        self.assertIsNone(session.left)

    def test_a_forked_process_is_no_rank(self) -> None:
        opt = self.make()
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(write, b"0" if opt._link.closed and not program.links else b"1")
            time.sleep(600)
            os._exit(0)
        self.assertEqual(os.read(read, 1), b"0")
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
        self.assertEqual(os.waitstatus_to_exitcode(status), -signal.SIGTERM)
        self.assertIsNone(program.stop.requested)
        os.close(read)
        os.close(write)
        self.train(opt)
        self.assertEqual(opt.round, 1)


class Several(WithFake):
    """Jobs of one program."""

    def test_another_job_has_another_name(self) -> None:
        first = self.make()
        name = first._link.name
        first.finish()
        self.assertEqual(self.make()._link.name, f"{name}-2")
        with self.assertRaisesRegex(ValueError, f"job '{name}-2' is open in this program"):
            net = torch.nn.Linear(2, 2)
            trib.DistributedOptimizer(net, torch.optim.SGD(net.parameters(), lr=0.1), name=f"{name}-2")

    def test_all_stop_before_one_waits(self) -> None:
        opt = self.make(name="generator")
        sessions = [self.library.session]
        twin = TwoLayers()
        trib.DistributedOptimizer(twin, torch.optim.SGD(twin.parameters(), lr=0.1), name="discriminator")
        sessions.append(self.library.session)
        sessions[0].saved = mock.Mock(side_effect=lambda: self.assertIsNotNone(sessions[1].left))
        self.backward()
        os.kill(os.getpid(), signal.SIGTERM)
        opt.step()
        with self.assertRaises(trib.Stopped):
            self.backward()
        sessions[0].saved.assert_called_once()
        self.assertFalse(sessions[1].was_saved)
        with mock.patch("os._exit", side_effect=SystemExit) as ended, self.assertRaises(SystemExit):
            program.end()
        ended.assert_called_once_with(75)
        for session in sessions:
            self.assertEqual(session.left, (Leave.STOPPED, "rank 0 was told to stop (SIGTERM)"))
            self.assertTrue(session.destroyed)
        self.assertTrue(sessions[1].was_saved)


class Stops(WithFake):
    def test_somebody_asked_for_it(self) -> None:
        opt = self.make()
        session = self.library.session
        self.library.events[2] = "stop"
        with self.assertRaises(trib.Stopped) as caught:
            self.train(opt, 5)
        self.assertEqual(caught.exception.code, 75)
        self.assertIsInstance(caught.exception, SystemExit)
        self.assertEqual(session.left[0], Leave.STOPPED)
        self.assertTrue(session.was_saved)
        torch.testing.assert_close(self.net.a.weight.detach().flatten(), torch.tensor(self.library.rounds[2][0]))

    def test_the_last_round_is_in_the_model(self) -> None:
        for what in (torch.optim.SGD, torch.optim.RMSprop):  # which steps here
            with self.subTest(what):
                self.anew()
                self.net = TwoLayers()
                opt = self.make(what(self.net.parameters(), lr=0.1))
                self.library.events[2] = "stop"
                with self.assertRaises(trib.Stopped):
                    self.train(opt, 5)
                self.assertEqual(opt.round, 2)
                self.check_as_alone(2, what)

    def test_signals_are_given_back(self) -> None:
        before = signal.getsignal(signal.SIGINT)
        opt = self.make()
        self.assertNotEqual(signal.getsignal(signal.SIGINT), before)
        opt.finish()
        self.assertEqual(signal.getsignal(signal.SIGINT), before)

    def test_a_stop_of_one_job_is_not_of_the_next(self) -> None:
        opt = self.make()
        os.kill(os.getpid(), signal.SIGTERM)
        self.backward()
        opt.step()
        with self.assertRaises(trib.Stopped):
            self.backward()
        opt = self.make()
        self.train(opt)
        self.assertEqual(opt.round, self.library.session.round)
        os.kill(os.getpid(), signal.SIGTERM)
        self.backward()
        opt.step()
        with self.assertRaises(trib.Stopped):
            self.backward()

    def test_a_view_that_stopped(self) -> None:
        opt = self.make()
        self.library.events[2] = "stopped"
        with self.assertRaises(trib.Stopped) as caught:
            self.train(opt, 5)
        self.assertEqual(caught.exception.reason, "somebody asked for it")

    def test_signals_stop_at_the_rounds_end(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(number):
                self.anew()
                opt = self.make()
                session = self.library.session
                self.backward()
                os.kill(os.getpid(), number)
                opt.step()
                with self.assertRaises(trib.Stopped):
                    self.backward()
                self.assertEqual(session.left, (Leave.STOPPED, f"rank 0 was told to stop ({number.name})"))
                self.assertEqual(opt.round, 1)

    def test_a_signal_while_attaching(self) -> None:
        before = signal.getsignal(signal.SIGINT)
        self.library.alone = lambda: os.kill(os.getpid(), signal.SIGINT)
        with self.assertLogs(logger, "INFO") as logs, self.assertRaises(trib.Stopped) as caught:
            self.make()
        self.assertEqual(caught.exception.code, 75)
        self.assertIn("rank 0: stopped: told to stop while it waited for node 1", logs.output[-1])
        self.assertEqual(signal.getsignal(signal.SIGINT), before)

    def test_a_signal_while_attaching_again(self) -> None:
        opt = self.make()
        self.library.events[1] = "gone"
        self.library.alone = lambda: os.kill(os.getpid(), signal.SIGTERM)
        self.backward()
        with self.assertRaises(trib.Stopped) as caught:
            opt.step()
        self.assertIn("waited for node 1", caught.exception.reason)

    def test_the_first_signal_has_an_answer(self) -> None:
        opt = self.make()
        session = self.library.session
        answers = []

        def wait(tensor: int = -1) -> Step:
            if not answers:
                with self.assertLogs(logger, "INFO") as logs:
                    os.kill(os.getpid(), signal.SIGINT)
                    deadline = time.monotonic() + 60
                    while not logs.output and time.monotonic() < deadline:
                        time.sleep(0.01)
                answers.extend(logs.output)
            return type(session).wait(session, tensor)

        session.wait = wait  # type: ignore[method-assign]
        self.backward()
        opt.step()
        with self.assertRaises(trib.Stopped):
            self.backward()
        why = "`tributary status` says why they are not"
        self.assertEqual(
            answers,
            [
                f"INFO:tributary:rank 0: SIGINT: stops when the parameters of round 1 are there ({why}); "
                "a second Ctrl-C ends this rank at once"
            ],
        )

    def test_how_long_an_attach_may_take(self) -> None:
        self.make(attach_timeout=2.5)
        self.assertEqual(self.library.attaches[-1].attach_timeout_ms, 2500)
        self._leave()
        self.make()
        self.assertEqual(self.library.attaches[-1].attach_timeout_ms, 0)  # as the environment says
        self._leave()
        for wrong in (0, -1, 604801, float("nan")):
            with self.assertRaisesRegex(ValueError, "attach_timeout="):
                self.make(attach_timeout=wrong)

    def test_stopped_while_attaching(self) -> None:
        opt = self.make()
        self.library.events[1] = "gone"
        self.library.refuse = [JobStopped("the job was stopped", Status.STOPPED)]
        self.backward()
        with self.assertRaises(trib.Stopped):
            opt.step()


if __name__ == "__main__":
    unittest.main()
