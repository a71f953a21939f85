"""Loops as people write them, killed and stopped at every point: they continue as the calm run."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import unittest
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from fake import FakeLibrary
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader
from with_ends import BATCH, EPOCHS, ROUNDS, SAMPLES, Killed, Run, WithEnds, kill, other_rank
from with_fake import TwoLayers, WithFake

import tributary.torch as trib
from tributary._library import Kept
from tributary.torch._base import plain
from tributary.torch._run import alike
from tributary.torch._run.loop import Top
from tributary.torch._run.program import program


class Average:
    """As exponential moving averages of weights are kept."""

    def __init__(self, net: nn.Module) -> None:
        self.values = [p.detach().clone() for p in net.parameters()]
        self.count = 0

    def update(self, net: nn.Module) -> None:
        self.count += 1
        for value, p in zip(self.values, net.parameters()):
            value.mul_(0.9).add_(p.detach(), alpha=0.1)

    def state_dict(self) -> dict[str, Any]:
        return {"values": self.values, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]
        for value, given in zip(self.values, state["values"]):
            value.copy_(given)


def epochs_in_a_range(run: Run) -> None:
    opt = run.optimizer()
    scheduler = lr_scheduler.StepLR(opt, 5, 0.5)
    loader = run.loader()
    for _ in range(EPOCHS):
        for batch in loader:
            run.train(batch)
            scheduler.step()
            run()


def a_step_an_epoch(run: Run) -> None:
    opt = run.optimizer()
    scheduler = lr_scheduler.StepLR(opt, 1, 0.5)
    loader = run.loader()
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            run.train(batch)
        run()
        scheduler.step()
        run()


def told_epochs(run: Run) -> None:
    opt = run.optimizer()
    scheduler = lr_scheduler.ExponentialLR(opt, 0.7)
    loader = run.loader()
    for epoch in trib.epochs(EPOCHS):
        size = len(next(iter(loader)))  # a look
        assert size == BATCH
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            run.train(batch)
        scheduler.step()


def endless(run: Run) -> None:
    opt = run.optimizer()
    scheduler = lr_scheduler.CosineAnnealingLR(opt, ROUNDS)
    loader = run.loader()
    batches = None
    for _ in trib.rounds(ROUNDS):
        batches = iter(loader) if batches is None else batches
        try:
            batch = next(batches)
        except StopIteration:
            batches = iter(loader)
            batch = next(batches)
        run.train(batch)
        scheduler.step()


def inner_cycle(run: Run) -> None:
    inner = torch.optim.SGD(run.test.net.parameters(), lr=0.1)
    scheduler = lr_scheduler.OneCycleLR(inner, 0.2, total_steps=ROUNDS + 1, cycle_momentum=False)
    run.optimizer(inner)
    for _ in trib.epochs(EPOCHS):
        for batch in run.loaders[0] if hasattr(run, "loaders") else run.loader():
            run.train(batch)
            scheduler.step()
            run()


def chained(run: Run) -> None:
    opt = run.optimizer()
    warm = lr_scheduler.LinearLR(opt, 0.1, total_iters=6)
    cosine = lr_scheduler.CosineAnnealingLR(opt, 20, eta_min=0.01)
    loader = run.loader()
    for _ in range(EPOCHS):
        for batch in loader:
            run.train(batch)
            warm.step()
            cosine.step()


def in_sequence(run: Run) -> None:
    opt = run.optimizer()
    parts = [lr_scheduler.LinearLR(opt, 0.1, total_iters=3), lr_scheduler.CosineAnnealingLR(opt, 10)]
    scheduler = lr_scheduler.SequentialLR(opt, parts, milestones=[3])
    loader = run.loader()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of the epoch that it passes on
        for _ in range(EPOCHS):
            for batch in loader:
                run.train(batch)
                scheduler.step()


def warm_restarts(run: Run) -> None:
    opt = run.optimizer()
    scheduler = lr_scheduler.CosineAnnealingWarmRestarts(opt, 2)
    loader = run.loader()
    for epoch in trib.epochs(EPOCHS):
        for batch in loader:
            run.train(batch)
            scheduler.step(epoch + (opt.round - epoch * 8) / 8)


def plateau(run: Run) -> None:
    opt = run.optimizer()
    scheduler = lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=0)
    loader = run.loader()
    judged = run.loader()
    for _ in trib.epochs(EPOCHS):
        for batch in loader:
            run.train(batch)
        assert [len(batch) for batch in judged] == [BATCH] * (SAMPLES // BATCH)
        run()
        scheduler.step(1.0)


def rate_by_hand(run: Run) -> None:
    opt = run.optimizer()
    loader = run.loader()
    for step in trib.rounds(ROUNDS):
        if step % (SAMPLES // BATCH) == 0 or "batches" not in vars(run):
            run.batches_of = iter(loader)
            run.batches = run.batches
        for group in opt.param_groups:
            group["lr"] = 0.1 * 0.9**step
        batch = next(run.batches_of, None)
        if batch is None:
            run.batches_of = iter(loader)
            batch = next(run.batches_of)
        run.train(batch)


def held_passes(run: Run) -> None:
    opt = run.optimizer()
    scheduler = lr_scheduler.StepLR(opt, 2, 0.8)
    loader = run.loader()
    for _ in range(EPOCHS):
        for number, batch in enumerate(loader):
            last = number % 2 == 1
            with contextlib.nullcontext() if last else opt.no_sync():
                run.train(batch, step=False, factor=0.5)
            if last:
                opt.step()
                scheduler.step()
                opt.zero_grad()


def accumulated(run: Run) -> None:
    opt = run.optimizer(accumulate=2, average=True)
    loader = run.loader()
    for _ in range(EPOCHS):
        for number, batch in enumerate(loader):
            run.train(batch, step=number % 2 == 1)
    del opt


def a_loader_an_epoch(run: Run) -> None:
    opt = run.optimizer()
    scheduler = lr_scheduler.StepLR(opt, 1, 0.5)
    for epoch in trib.epochs(EPOCHS):
        judged, loader = DataLoader(range(6), 2, sampler=trib.DistributedSampler(range(6))), run.loader()
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            run.train(batch)
        assert len(list(judged)) == 3
        scheduler.step()


def a_round_an_epoch(run: Run) -> None:
    run.optimizer(accumulate=8, average=True)
    loader = run.loader()
    for _ in range(EPOCHS * 2):
        for number, batch in enumerate(loader):
            run.train(batch, step=number == 7)


def with_processes(run: Run) -> None:
    opt = run.optimizer()
    scheduler = lr_scheduler.StepLR(opt, 5, 0.5)
    loader = run.loader(workers=2)
    for _ in range(EPOCHS):
        for batch in loader:
            run.train(batch)
            scheduler.step()


def an_average(run: Run) -> None:
    opt = run.optimizer()
    average = Average(run.test.net)
    trib.keep(average=average)
    loader = run.loader()
    for _ in range(EPOCHS):
        for batch in loader:
            run.train(batch)
            average.update(run.test.net)
    run.average = [*average.values, torch.tensor(float(average.count))]
    del opt


def steps_here(run: Run) -> None:
    inner = torch.optim.RMSprop(run.test.net.parameters(), lr=0.01, momentum=0.9)
    opt = run.optimizer(inner)
    scheduler = lr_scheduler.StepLR(opt, 5, 0.5)
    loader = run.loader()
    for _ in range(EPOCHS):
        for batch in loader:
            run.train(batch)
            scheduler.step()


class OtherScheduler:
    """As timm's: none of torch's, with a step that takes the number of updates."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.updates = 0
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])

    def state_dict(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "optimizer"}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def step_update(self) -> None:
        self.updates += 1
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * 0.9**self.updates


def another_scheduler(run: Run) -> None:
    opt = run.optimizer()
    scheduler = OtherScheduler(opt)
    trib.keep(scheduler=scheduler)
    loader = run.loader()
    for _ in range(EPOCHS):
        for batch in loader:
            run.train(batch)
            scheduler.step_update()


def by_values_of_all(run: Run) -> None:
    opt = run.optimizer()
    trib.barrier()
    patience = trib.broadcast({"patience": 0})["patience"]
    scheduler = lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=patience)
    loader = run.loader()
    for epoch in trib.epochs(EPOCHS):
        for batch in loader:
            run.agreed["largest", opt.round] = trib.all_reduce(batch.sum(), "max").item()
            run()
            run.train(batch)
            trib.log(loss=run.losses.get(opt.round, 0.0))
            run()
            run.agreed["mean", opt.round] = trib.all_reduce(run.losses.get(opt.round, 0.0))
            run()
        run.agreed["loss", epoch] = trib.metric("loss")
        run()
        scheduler.step(run.agreed["loss", epoch])
        trib.barrier()
        run()


def value_of(kept: Kept) -> Any:
    return plain.unpacked(plain.Packed.of(kept.state, kept.large))


class Loops(WithEnds):
    def test_killed(self) -> None:
        for loop in (epochs_in_a_range, a_step_an_epoch, told_epochs, endless, chained, in_sequence, warm_restarts,
                     plateau, held_passes, accumulated, an_average, a_loader_an_epoch, a_round_an_epoch,
                     another_scheduler, steps_here, by_values_of_all):  # fmt: skip
            self.library.others = lambda data: [other_rank(data)]
            for at in self.at_points(loop):
                with self.subTest(loop.__name__, at=at):
                    self.go_on(loop, kill, at)

    def test_killed_with_large_parts(self) -> None:
        with mock.patch.object(plain, "LARGE", 4):
            for loop in (steps_here, an_average):
                for at in self.at_points(loop):
                    with self.subTest(loop.__name__, at=at):
                        self.go_on(loop, kill, at)

    def test_a_round_that_is_complete_begins_again_with_its_parameters_of_before(self) -> None:
        calm = self.process(told_epochs)
        for at in (8, 9):  # gradients of round 3 are there, it is complete
            self.anew()
            with self.assertRaises(Killed):
                self.process(told_epochs, kill, at)
            self._leave()
            again = self.process(told_epochs)
            self.assertEqual(again.losses, {round: loss for round, loss in calm.losses.items() if round >= 3})

    def test_stopped(self) -> None:
        def stop() -> None:
            os.kill(os.getpid(), signal.SIGTERM)

        for loop in (epochs_in_a_range, a_step_an_epoch, told_epochs, endless, chained, in_sequence, warm_restarts,
                     plateau, held_passes, accumulated, an_average, steps_here, by_values_of_all):  # fmt: skip
            for at in self.at_points(loop):
                with self.subTest(loop.__name__, at=at):
                    self.go_on(loop, stop, at)

    def test_a_living_process_goes_back_over_the_end_of_an_epoch(self) -> None:
        for loop in (told_epochs, plateau, a_loader_an_epoch, endless, an_average, steps_here, by_values_of_all):
            calm = self.calm(loop)
            for round, back in ((13, 5), (17, 0), (24, 8), (16, 7)):
                with self.subTest(loop.__name__, round=round, back=back):
                    self.goes_back(loop, calm, self.library.events, round, back)

    def test_a_living_process_goes_back_in_a_call(self) -> None:
        calm = self.calm(by_values_of_all)
        for calls, back in ((20, 7), (21, 7), (36, 10), (37, 3), (39, 0)):
            with self.subTest(calls=calls, back=back):
                self.goes_back(by_values_of_all, calm, self.library.gather_events, calls, back)

    def test_a_process_that_began_later_goes_back_to_the_beginning(self) -> None:
        for loop in (epochs_in_a_range, told_epochs, an_average, plateau):
            with self.subTest(loop.__name__):
                run, rates, values = self.calm(loop)
                self.anew()
                with self.assertRaises(Killed):
                    self.process(loop, kill, 32)
                self._leave()
                self.library.events[13] = "back to 0"
                again = self.process(loop)
                self.assertEqual({round: again.batches[round] for round in run.batches}, run.batches)
                self.assertEqual(self.rates()[-len(rates) :], rates)
                for one, other in zip(self.whole(), values):
                    torch.testing.assert_close(one, other, rtol=0, atol=0)

    def test_a_loop_that_counts_epochs_itself_is_told_that_it_lacks_their_ends(self) -> None:
        self.library.events[11] = "back to 5"
        with self.assertLogs("tributary", "WARNING") as logs:
            self.process(a_step_an_epoch)
        self.assertIn("went back over the end of epoch 0. What the loop does between epochs", "\n".join(logs.output))

    def test_loaders_with_processes(self) -> None:
        for at in (8, 41, 70):
            self.go_on(with_processes, kill, at)


class Keeping(WithFake):
    def test_what_is_large_goes_apart_and_comes_back(self) -> None:
        self.net.register_buffer("large", torch.arange(100_000.0))
        self.train(self.make(), 3)
        kept = self.library.kept[3]
        self.assertLess(len(kept.state), 64 << 10)
        self.assertGreater(len(kept.large), 400_000)
        self._leave()
        self.net = TwoLayers()
        self.net.register_buffer("large", torch.zeros(100_000))
        self.train(self.make())
        self.assertTrue(torch.equal(self.net.large, torch.arange(100_000.0)))

    def test_an_optimizer_that_steps_here_begins_a_round_again_with_its_parameters(self) -> None:
        def make() -> trib.DistributedOptimizer:
            return self.make(torch.optim.RMSprop(self.net.parameters(), lr=0.01))

        self.train(make(), 3)
        self._leave()
        self.net = TwoLayers()
        opt = make()
        with self.assertNoLogs("tributary", "WARNING"):
            self.train(opt)  # once more
        self.assertEqual((opt.round, len(self.library.pushes)), (3, 3))

    def test_buffers_and_frozen_parameters_begin_as_those_of_the_rank_that_gives_them(self) -> None:
        def net(value: float) -> nn.Module:
            made = nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
            made[0].requires_grad_(False)
            with torch.no_grad():
                made[0].weight.fill_(value)
                made[1].running_mean.fill_(value)
            return made

        def make() -> trib.DistributedOptimizer:
            trained = [p for p in self.net.parameters() if p.requires_grad]
            return trib.DistributedOptimizer(self.net, torch.optim.SGD(trained, lr=0.1), name="frozen")

        self.library.gives = True
        self.net = net(1.0)
        make()
        given = self.library.kept[0]
        self.anew()
        self.library.gives, self.library.kept_by_first = False, {0: given}
        self.net = net(2.0)
        make()
        for values in (self.net[0].weight, self.net[1].running_mean):
            self.assertTrue(torch.equal(values, torch.ones_like(values)))
        self.anew()
        self.net = net(2.0)
        with (
            mock.patch.object(alike, "AT_BEGINNING", 8),
            self.assertRaisesRegex(ValueError, "frozen parameters .* are"),
        ):
            self.library.kept_by_first = {}
            self.library.gives = True
            make()
            given = self.library.kept[0]
            self.anew()
            self.library.gives, self.library.kept_by_first = False, {0: given}
            self.net = net(3.0)
            make()

    def test_schedulers_of_two_optimizers(self) -> None:
        def run(rounds: int) -> list[float]:
            twin = TwoLayers()
            opts = [
                trib.DistributedOptimizer(net, torch.optim.SGD(net.parameters(), lr=0.1), name=name)
                for name, net in (("one", self.net), ("two", twin))
            ]
            schedulers = [lr_scheduler.ExponentialLR(opt, 0.9) for opt in opts]
            for batch in Run(self, None, 0).loader():
                if opts[0].round == rounds:
                    break
                x = batch.float()[:, None].expand(2, 4)
                (self.net(x).square().mean() + twin(x).square().mean()).backward()
                for opt, scheduler in zip(opts, schedulers):
                    opt.step()
                    scheduler.step()
                    opt.zero_grad()
            return [opt.param_groups[0]["lr"] for opt in opts]

        libraries = {"one": self.library, "two": FakeLibrary()}
        link = "tributary.torch._session.attachment._library.load"
        with mock.patch(link, side_effect=lambda: libraries[["one", "two"][len(program.links) % 2]]):
            run(3)
            self._leave()
            self.net = TwoLayers()
            rates = run(6)
        for rate in rates:
            self.assertAlmostEqual(rate, 0.1 * 0.9**6)

    def test_a_rate_that_a_scheduler_hides_is_told(self) -> None:
        def run(rate: float, rounds: int) -> float:
            opt = self.make(torch.optim.SGD(self.net.parameters(), lr=rate))
            scheduler = lr_scheduler.ExponentialLR(opt, 0.5)
            for batch in Run(self, None, 0).loader():
                if opt.round == rounds:
                    break
                self.net(batch.float()[:, None].expand(2, 4)).square().mean().backward()
                opt.step()
                scheduler.step()
                opt.zero_grad()
            return float(opt.param_groups[0]["lr"])

        run(0.1, 2)
        for rate, told in ((0.1, False), (0.05, True)):
            self._leave()
            self.net = TwoLayers()
            with self.assertLogs("tributary") as logs:
                self.assertAlmostEqual(run(rate, 3), 0.1 * 0.5**3)
            what = "'lr': 0.1"  # that the job began with
            self.assertEqual(what in "\n".join(logs.output), told)

    def test_a_scheduler_that_is_not_known_is_told_once(self) -> None:
        opt = self.make()
        scheduler = OtherScheduler(opt)
        with self.assertLogs("tributary", "WARNING") as logs:
            self.train(opt, 3)
        self.assertEqual(len([line for line in logs.output if "tributary.torch.keep(scheduler=...)" in line]), 1)
        trib.keep(scheduler=scheduler)

    def test_what_has_no_state(self) -> None:
        with self.assertRaisesRegex(TypeError, r"keep\(count=...\): a int has no state_dict"):
            trib.keep(count=3)
        thing = mock.Mock(state_dict=lambda: {"function": print}, load_state_dict=print)
        with self.assertRaisesRegex(TypeError, r"keep\(thing=...\) has a builtins.builtin_function_or_method"):
            trib.keep(thing=thing)

    def test_bytes_of_others_make_no_objects(self) -> None:
        values = {"a": (1, 2.5, None), "b": [torch.arange(3), {4: "x"}, {5, 6}], "c": float("inf")}
        again = plain.decoded(plain.encoded(values, "it"))
        self.assertTrue(torch.equal(again["b"][0], torch.arange(3)))
        self.assertEqual((again["a"], again["b"][1:], again["c"]), (values["a"], values["b"][1:], values["c"]))
        for hostile in (pickle.dumps(Path("x")), pickle.dumps(print), b"", b"no pickle", pickle.dumps(("tensor", 3))):
            with self.assertRaisesRegex(ValueError, "a state that was kept cannot be read"):
                plain.decoded(hostile)

    def test_a_rank_without_a_state_of_its_own(self) -> None:
        opt = self.make()
        loader = Run(self, None, 0).loader()
        for number, _ in enumerate(loader):
            self.train(opt)
            if number == 2:
                break
        self.library.kept_by_first, self.library.kept = dict(self.library.kept), {}
        opt.finish()
        self._leave()
        state = torch.get_rng_state()
        self.net = type(self.net)()
        self.make()
        batches = [batch.tolist() for batch in Run(self, None, 0).loader()]
        self.assertEqual(len(batches), 5)  # of 8
        del state

    def test_a_seed_is_that_of_the_next_round_after_a_kill_before_the_top(self) -> None:
        self.train(self.make(seed=3), 3)
        seeded = torch.get_rng_state()
        self._leave()
        self.net = type(self.net)()
        opt = self.make(seed=3)
        torch.manual_seed(42)  # as a framework does, before its loop
        self.train(opt)  # once more
        self.assertEqual((opt.round, len(self.library.pushes)), (3, 3))
        self.assertTrue(torch.equal(torch.get_rng_state(), seeded))

    def test_a_rank_of_which_nothing_is_known_says_so(self) -> None:
        self.train(self.make(), 3)
        self.library.kept.clear()
        self._leave()
        with self.assertLogs("tributary", "WARNING") as logs:
            self.make()
        self.assertIn("nothing is kept of round 3 for this rank", "\n".join(logs.output))
        self.assertEqual(len(list(Run(self, None, 0).loader())), 5)

    def test_other_data_are_refused(self) -> None:
        opt = self.make()
        for _ in Run(self, None, 0).loader():
            self.train(opt)
        self._leave()
        self.make()
        judged = trib.DistributedSampler(range(20), seed=1, batch_size=2)  # not yet: it may be another one's place
        with self.assertRaisesRegex(ValueError, r"of 16 samples \(seed 1\), and the loop takes a batch of 20"):
            list(judged)

    def test_other_batches_and_ranks_share_what_is_left(self) -> None:
        opt = self.make()
        taken = []
        for number, batch in enumerate(Run(self, None, 0).loader()):
            if number == 3:
                break
            taken += batch.tolist()
            self.train(opt)
        self._leave()
        self.make()
        for world, size in ((1, 1), (5, 1), (2, 4)):
            left = []
            for rank in range(world):
                view = mock.Mock(rank=rank, world_size=world)
                program.begin_loop()
                program.loop.go_on(Top(**value_of(self.library.kept[3])["top"]), own=False)
                with mock.patch.object(program.link.attachment, "_view", view):
                    sampler = trib.DistributedSampler(range(SAMPLES), seed=1, batch_size=size)
                    left += list(sampler)
            self.assertEqual(sorted(taken + left), sorted(range(SAMPLES)))

    def test_an_epoch_that_is_left_early_is_said(self) -> None:
        opt = self.make()
        loader = Run(self, None, 0).loader()
        with self.assertLogs("tributary", "WARNING") as logs:
            for _ in range(3):
                for number, _ in enumerate(loader):
                    self.train(opt)
                    if number == 4:
                        break
        self.assertEqual(len([line for line in logs.output if "epoch 0 was left after 5 of 8 batches" in line]), 1)


if __name__ == "__main__":
    unittest.main()
