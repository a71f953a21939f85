"""Jobs of one program: killed at every point of the loop, they continue as the calm run. Libraries are in Python."""

from __future__ import annotations

import json
import unittest
from typing import Any
from unittest import mock

import torch
from fake import FakeLibrary, FakeRecovery
from torch import nn
from torch.utils.data import DataLoader
from with_fake import WithFake

import tributary.torch as trib
from tributary import Error
from tributary._library import AttachOptions
from tributary.torch._base.log import logger
from tributary.torch._run import place
from tributary.torch._run.program import program

ROUNDS = 6


class Killed(BaseException):
    """Stands for a signal that is never seen."""


class Libraries:
    """One for each job."""

    def __init__(self) -> None:
        self.of: dict[str, FakeLibrary] = {}

    def recovery(self) -> FakeRecovery:
        return FakeRecovery()

    def attach(self, options: AttachOptions) -> Any:
        name = json.loads(options.job)["job"]["name"]
        return self.of.setdefault(name, FakeLibrary()).attach(options)


class Lost(Libraries):
    """When one job's servers are lost, those of all are, with what was kept."""

    def attach(self, options: AttachOptions) -> Any:
        if any(library.session.over for library in self.of.values() if library.sessions):
            for library in self.of.values():
                library.sessions.clear()
                library.rounds.clear()
                library.kept.clear()
        return super().attach(options)


class Run:
    """A GAN's loop: its reports of each round, and the parameters and buffers at the end."""

    def __init__(self, draws: bool, at: int = 0, critics: int = 1, times: int = 1) -> None:
        self.draws = draws
        self.at = at
        self.critics = critics
        self.times = times
        self.points = 0
        self.skips = -1  # a point at which it has no round of the judge this time
        self.said: dict[str, list[float]] = {}
        self.end: list[torch.Tensor] = []
        self.trained: list[torch.Tensor] = []

    def point(self) -> None:
        self.points += 1
        if self.points == self.at:
            raise Killed

    def __call__(self, width: int = 4, rate: float = 0.1) -> None:
        torch.manual_seed(3)
        judge = nn.Sequential(nn.Linear(2, width), nn.BatchNorm1d(width), nn.Dropout(0.2), nn.Linear(width, 1))
        net = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        judges = trib.DistributedOptimizer(
            judge, torch.optim.SGD(judge.parameters(), lr=rate), name="judge", overlap="step"
        )
        opt = trib.DistributedOptimizer(net, torch.optim.SGD(net.parameters(), lr=0.1), name="net")
        scheduler = torch.optim.lr_scheduler.StepLR(judges, 2, 0.5)
        sampler = trib.DistributedSampler(range(16), seed=1)
        batch = torch.zeros(4)
        batches = iter(DataLoader(range(16), batch_size=4, sampler=sampler) if self.draws else ())
        for _ in trib.rounds(ROUNDS):
            if self.draws:
                try:
                    batch = next(batches)
                except StopIteration:
                    batches = iter(DataLoader(range(16), batch_size=4, sampler=sampler))
                    batch = next(batches)
            real = batch.float()[:, None] / 16 + torch.randn(4, 2)
            fake = net(torch.randn(4, 2))
            judges.zero_grad()
            loss = (judge(real) - 1).square().mean() + judge(fake.detach()).square().mean()
            self.said[f"judge {judges.round + 1}"] = [loss.item(), judges.param_groups[0]["lr"] if self.draws else 0.0]
            if self.points != self.skips:
                loss.backward()
            self.point()
            if self.points != self.skips + 1:
                judges.step()
            self.point()
            if judges.round % self.critics:
                continue
            for time in range(self.times):
                fake = net(torch.randn(4, 2)) if time else fake
                opt.zero_grad()
                loss = (judge(fake) - 1).square().mean()
                self.said[f"net {opt.round + 1}"] = [loss.item()]
                loss.backward()
                self.point()
                opt.step()
                self.point()
            scheduler.step()
        self.trained = [value.detach().clone() for part in (judge, net) for value in part.parameters()]
        self.end = [value.detach().clone() for part in (judge, net) for value in part.state_dict().values()]
        program.finish()


class Unfrozen(Run):
    """Its first layer trains from the third round on, in a job of its own."""

    def __call__(self, **_: Any) -> None:
        torch.manual_seed(3)
        net = nn.Sequential(nn.Linear(1, 4), nn.Linear(4, 1))
        net[0].requires_grad_(False)
        opt = trib.DistributedOptimizer(net, torch.optim.SGD(net[1].parameters(), lr=0.1), name="last")
        later = None
        loader = DataLoader(range(16), batch_size=4, sampler=trib.DistributedSampler(range(16), seed=1))
        batches = iter(loader)
        for number in trib.rounds(ROUNDS):
            if number >= 2 and later is None:
                net[0].requires_grad_(True)
                later = trib.DistributedOptimizer(net, torch.optim.SGD(net[0].parameters(), lr=0.1), name="first")
            try:
                batch = next(batches)
            except StopIteration:
                batches = iter(loader)
                batch = next(batches)
            loss = net(batch.float()[:, None] / 16).square().mean()
            self.said[f"last {opt.round + 1}"] = [loss.item()]
            loss.backward()
            self.point()
            for one in (opt, later):
                if one is not None:
                    one.step()
                    one.zero_grad()
                    self.point()
        self.end = [value.detach().clone() for value in net.parameters()]
        program.finish()


class Together(WithFake):
    def run_it(self, run: Run, **options: Any) -> Run:
        self.libraries = Libraries()
        with mock.patch("tributary._library.load", return_value=self.libraries):
            try:
                run(**options)
            except Killed:
                self._leave()
                run(**options)
            self._leave()
        return run

    def same(self, one: Run, two: Run) -> None:
        self.assertEqual(one.said, two.said)
        for first, second in zip(one.end, two.end):
            self.assertTrue(torch.equal(first, second))

    def test_a_rank_that_is_killed_anywhere(self) -> None:
        for draws in (True, False):
            for critics, times in ((1, 1), (3, 1), (1, 2)):
                calm = self.run_it(Run(draws, critics=critics, times=times))
                self.assertEqual(len(self.libraries.of["judge"].rounds), ROUNDS + 1)
                for at in range(1, calm.points + 1):
                    with self.subTest(draws=draws, critics=critics, times=times, at=at):
                        killed = self.run_it(Run(draws, at, critics, times))
                        if times == 1:
                            self.same(calm, killed)
                        else:  # its passes begin with parameters of its last round: losses and buffers are of those
                            for first, second in zip(calm.trained, killed.trained):
                                self.assertTrue(torch.equal(first, second))
                        self.assertEqual(len(self.libraries.of["judge"].rounds), ROUNDS + 1)

    def test_a_job_that_begins_in_the_middle_of_the_loop(self) -> None:
        calm = self.run_it(Unfrozen(draws=True))
        self.assertEqual([len(self.libraries.of[name].rounds) for name in ("last", "first")], [ROUNDS + 1, ROUNDS - 1])
        for at in range(1, calm.points):
            with self.subTest(at=at):
                self.same(calm, self.run_it(Unfrozen(True, at)))
                self.assertEqual(len(self.libraries.of["last"].rounds), ROUNDS + 1)

    def test_a_process_cannot_go_back_to_where_a_job_had_not_begun(self) -> None:
        libraries = Lost()
        libraries.of["last"] = FakeLibrary()
        libraries.of["last"].events[5] = "lost"
        calm = self.run_it(Unfrozen(draws=True))
        with mock.patch("tributary._library.load", return_value=libraries):
            run = Unfrozen(draws=True)
            with self.assertRaisesRegex(Error, "job 'first' began after round 2 of job 'last', which went back to rou"):
                run()
            self._leave()
            run()  # as launchers do it
            self._leave()
        self.same(calm, run)

    def test_a_job_that_is_behind_is_refused(self) -> None:
        with mock.patch("tributary._library.load", return_value=Libraries()) as load:
            run = Unfrozen(True, at=14)
            with self.assertRaises(Killed):
                run()
            self._leave()
            load.return_value.of["first"].rounds.clear()  # its servers were lost before it had a snapshot
            load.return_value.of["first"].kept.clear()
            with self.assertRaisesRegex(
                Error, "job 'first' is at round 0, and it was at [0-9] when 'last' had the round"
            ):
                run()

    def test_two_jobs_do_not_train_one_parameter(self) -> None:
        with mock.patch("tributary._library.load", return_value=Libraries()):
            net = nn.Linear(2, 2)
            trib.DistributedOptimizer(net, torch.optim.SGD(net.parameters(), lr=0.1), name="one")
            with self.assertRaisesRegex(
                ValueError, "parameter 'weight' is trained by another open job of this program"
            ):
                trib.DistributedOptimizer(net, torch.optim.SGD([net.weight], lr=0.1), name="two")
            self._leave()

    def test_what_is_too_large_to_be_kept_is_told(self) -> None:
        calm = self.run_it(Run(draws=True), width=20_000, rate=1e-6)
        with self.assertLogs(logger, "WARNING") as logs, mock.patch.object(place, "BEFORE", 0):
            # Between the two rounds of the third iteration.
            killed = self.run_it(Run(draws=True, at=10), width=20_000, rate=1e-6)
        self.assertIn("job 'judge' went through round 3 once more", "\n".join(logs.output))
        different = [key for key in calm.said if calm.said[key] != killed.said[key]]
        self.assertEqual(different, ["judge 3"])
        for first, second in zip(calm.end, killed.end):
            self.assertTrue(first.numel() > 1000 or torch.equal(first, second))

    def test_a_loop_that_does_something_else_this_time(self) -> None:
        calm = self.run_it(Run(draws=True))
        run = Run(draws=True, at=10)  # the judge has its third round
        run.skips = run.at
        run = self.run_it(run)
        self.assertEqual(len(self.libraries.of["judge"].rounds), ROUNDS + 1)
        self.assertEqual(run.said.keys(), calm.said.keys())

    def test_rounds_of_different_iterations_are_refused(self) -> None:
        with mock.patch("tributary._library.load", return_value=Libraries()) as load:
            run = Run(draws=True, at=18)
            with self.assertRaises(Killed):
                run()
            self._leave()
            del load.return_value.of["net"].rounds[2:]  # its server was lost
            with self.assertRaisesRegex(Error, "job 'net' is at round 1, and it was at 4 when 'judge' had the round"):
                run()

    def test_all_jobs_go_back(self) -> None:
        calm = self.run_it(Run(draws=True))
        for job, round in (("judge", 3), ("net", 2)):
            with self.subTest(job):
                back = Lost()
                for name in ("judge", "net"):
                    back.of[name] = FakeLibrary()
                back.of[job].events[round] = "lost"
                with mock.patch("tributary._library.load", return_value=back):
                    run = Run(draws=True)
                    run()
                    self._leave()
                self.assertEqual(
                    [run.said[key] for key in sorted(calm.said)], [calm.said[key] for key in sorted(calm.said)]
                )
                for first, second in zip(calm.end, run.end):
                    self.assertTrue(torch.equal(first, second))


if __name__ == "__main__":
    unittest.main()
