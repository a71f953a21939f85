"""Loaders that no DistributedSampler deals out: streams, samplers of one's own, and ranks with unequal data."""

from __future__ import annotations

import itertools
import unittest
from collections.abc import Iterator
from typing import Any, Callable

import torch
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, IterableDataset, WeightedRandomSampler
from with_ends import BATCH, EPOCHS, SAMPLES, Killed, Net, Run, WithEnds, kill, other_rank

import tributary.torch as trib
from tributary.torch._base import plain
from tributary.torch._base.log import logger


class Stateful:
    """A loader with a state, as torchdata's: what is loaded is for its next iteration, and whoever asks for the state
    before that makes it, with random numbers.
    """

    def __init__(self, order: Callable[[int], list[int]] = lambda epoch: list(range(SAMPLES))) -> None:
        self.order = order
        self.place = {"epoch": 0, "given": 0, "whole": False}
        self.made = False  # an iteration
        self.waits = False  # it is the next one

    def make(self) -> None:
        self.made = True
        torch.rand(())

    def __iter__(self) -> Iterator[torch.Tensor]:
        again = self.made and not self.waits
        if not self.waits:
            self.make()
        if self.place["whole"] and not again:  # what was loaded is over
            self.make()
        self.waits = False
        if again or self.place["whole"]:
            self.place = {"epoch": self.place["epoch"] + 1, "given": 0, "whole": False}
        return self.iterate()

    def iterate(self) -> Iterator[torch.Tensor]:
        batches = torch.tensor(self.order(self.place["epoch"])).split(BATCH)
        while self.place["given"] < len(batches):
            self.place["given"] += 1
            yield batches[self.place["given"] - 1]
        self.place["whole"] = True

    def state_dict(self) -> dict[str, Any]:
        if not self.made:
            self.make()
            self.waits = True
        return dict(self.place)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = dict(state)
        self.made = self.waits = False


class Shard(IterableDataset[int]):
    """Splits itself, by rank and by the loader's processes."""

    def __iter__(self) -> Iterator[int]:
        worker = torch.utils.data.get_worker_info()
        parts, part = (1, 0) if worker is None else (worker.num_workers, worker.id)
        first = trib.rank() * parts + part
        return iter(range(first, SAMPLES, trib.world_size() * parts))


def train(run: Run, loader: Any, **options: Any) -> None:
    opt = run.optimizer()
    scheduler = lr_scheduler.StepLR(opt, 5, 0.5)
    by_epoch = lr_scheduler.StepLR(opt, 1, 0.9)
    for epoch in trib.epochs(EPOCHS):
        for batch in trib.batches(loader, **options):
            run.train(batch)
            scheduler.step()
            run()
        run.agreed["epoch", epoch] = trib.all_reduce(float(opt.round))
        by_epoch.step()
        run()


def stateful(run: Run) -> None:
    train(run, Stateful(lambda epoch: torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch)).tolist()))


def by_itself(run: Run) -> None:
    """Each rank's data decide: the ranks exchange nothing."""
    train(run, Stateful(), until="own")


def shuffled(run: Run) -> None:
    train(run, DataLoader(range(SAMPLES), batch_size=BATCH, shuffle=True))


def weighted(run: Run) -> None:
    sampler = WeightedRandomSampler([1.0] * 8 + [3.0] * 8, SAMPLES)
    train(run, DataLoader(range(SAMPLES), batch_size=BATCH, sampler=sampler))


def bucketed(run: Run) -> None:
    """Batches of several sizes, by a sampler of one's own."""

    class Buckets:
        def __iter__(self) -> Iterator[list[int]]:
            order = torch.randperm(SAMPLES).tolist()
            return iter([order[:2], order[2:5], order[5:10], order[10:]])

    train(run, DataLoader(range(SAMPLES), batch_sampler=Buckets()))


def with_processes(run: Run) -> None:
    train(run, DataLoader(Shard(), batch_size=BATCH, num_workers=2))


def a_loader_an_epoch(run: Run) -> None:
    opt = run.optimizer()
    for epoch in trib.epochs(EPOCHS):
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch)).tolist()
        for batch in trib.batches(DataLoader(order, batch_size=BATCH)):
            run.train(batch)
        run()
    del opt


def epochs_in_a_range(run: Run) -> None:
    opt = run.optimizer()
    loader = DataLoader(range(SAMPLES), batch_size=BATCH, shuffle=True)
    for _ in range(EPOCHS):
        for batch in trib.batches(loader):
            run.train(batch)
            run()
    del opt


def accumulated(run: Run) -> None:
    opt = run.optimizer(accumulate=3)
    for _ in trib.epochs(EPOCHS):
        left = 0
        for number, batch in enumerate(trib.batches(DataLoader(range(SAMPLES), batch_size=BATCH, shuffle=True))):
            left = (number + 1) % 3
            run.train(batch, step=left == 0, factor=1 / 3)
        if left:
            opt.step()
            opt.zero_grad()


def kept_by_hand(run: Run) -> None:
    """Loop whose top is a round's first gradient."""
    opt = run.optimizer()
    loader = Stateful(lambda epoch: torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch)).tolist())
    loader.make = lambda: None  # type: ignore[method-assign]  # random numbers are not put back
    trib.keep(loader=loader)
    for _ in trib.epochs(EPOCHS):
        for batch in loader:
            run.train(batch)
            run()
    del opt


LOOPS = (stateful, by_itself, shuffled, weighted, bucketed, a_loader_an_epoch, epochs_in_a_range, accumulated)


class OtherRank:
    """One that has so many batches in an epoch."""

    def __init__(self, batches: int) -> None:
        self.batches = batches
        self.asked = 0

    def __call__(self, data: bytes) -> list[bytes]:
        call, _ = plain.decoded(data)
        if not call.startswith("batches"):
            return [other_rank(data)]
        number = self.asked % (self.batches + 1)
        self.asked += 1
        return [plain.encoded((call, number < self.batches), "")]


class Places(WithEnds):
    def some_points(self, loop: Callable[[Run], None], first: int) -> Iterator[int]:
        return itertools.islice(self.at_points(loop), first % 3, None, 3)

    def test_killed(self) -> None:
        for first, loop in enumerate((*LOOPS, kept_by_hand)):
            for at in self.some_points(loop, first):
                with self.subTest(loop.__name__, at=at):
                    self.go_on(loop, kill, at)

    def test_killed_with_processes(self) -> None:
        for at in (8, 42, 70):
            self.go_on(with_processes, kill, at)

    def test_killed_when_data_are_over(self) -> None:
        """The other rank has 3 batches more in each epoch."""
        for first, loop in enumerate((stateful, shuffled, epochs_in_a_range)):
            self.library.others = OtherRank(SAMPLES // BATCH + 3)
            for at in self.some_points(loop, first):
                with self.subTest(loop.__name__, at=at):
                    self.library.others = OtherRank(SAMPLES // BATCH + 3)
                    self.go_on(loop, kill, at)

    def test_a_living_process_goes_back(self) -> None:
        for loop in (stateful, shuffled, weighted, a_loader_an_epoch, epochs_in_a_range):
            calm = self.calm(loop)
            for round, back in ((13, 5), (17, 0), (24, 8), (16, 7), (6, 6)):
                with self.subTest(loop.__name__, round=round, back=back):
                    self.goes_back(loop, calm, self.library.events, round, min(back, round - 1))

    def test_a_living_process_goes_back_when_it_asks(self) -> None:
        for options in ({}, {"on_rewind": "raise"}):

            def loop(run: Run, options: dict[str, str] = options) -> None:
                opt = run.optimizer(**options)
                loader = DataLoader(range(SAMPLES), batch_size=BATCH, shuffle=True)
                for _ in trib.epochs(EPOCHS):
                    for batch in trib.batches(loader):
                        run.train(batch)
                del opt

            calm = self.calm(loop)
            for calls, back in ((3, 1), (8, 5), (9, 6), (20, 4), (26, 0)):
                with self.subTest(calls=calls, back=back, **options):
                    self.goes_back(loop, calm, self.library.gather_events, calls, back)

    def test_a_finished_job_goes_on_with_more_epochs(self) -> None:
        for make in (Stateful, lambda: DataLoader(range(SAMPLES), batch_size=BATCH, shuffle=True)):

            def loop(run: Run, epochs: int, make: Any = make) -> None:
                opt = run.optimizer()
                for _ in trib.epochs(epochs):
                    for batch in trib.batches(make()):
                        run.train(batch)
                del opt

            whole, _, values = self.calm(lambda run: loop(run, 3))
            self.calm(lambda run: loop(run, 2))
            self._leave()
            again = self.process(lambda run: loop(run, 3))
            self.assertEqual(again.batches, {r: b for r, b in whole.batches.items() if r > 16})
            for one, other in zip(self.whole(), values):
                torch.testing.assert_close(one, other, rtol=0, atol=0)


class Uneven(WithEnds):
    def setUp(self) -> None:
        super().setUp()
        self.net = Net()

    def weights(self) -> list[int]:
        return [push["weight"] for push in self.library.pushes]

    def test_a_rank_without_data_counts_nothing(self) -> None:
        self.library.others = OtherRank(5)
        opt = self.make()
        data = trib.batches([torch.ones(2, 1) * n for n in range(3)])
        counts, losses = [], []
        for x in data:
            before = self.whole()
            loss = self.net(x).square().mean()
            loss.backward()
            opt.step()
            opt.zero_grad()
            trib.log(loss=loss)
            counts.append(data.counts)
            losses.append(loss.item())
            if not data.counts:
                self.assertTrue(all(torch.equal(a, b) for a, b in zip(before[:4], self.whole()[:4])))
        self.assertEqual(counts, [True] * 3 + [False] * 2)
        self.assertEqual(self.weights(), [1, 1, 1, 0, 0])
        self.assertEqual([round for round, *_ in self.library.figures], [1, 2, 3])
        self.library.others = lambda data: []
        self.assertAlmostEqual(trib.metric("loss"), sum(losses[:3]) / 3)

    def test_nothing_is_left_of_what_counts_nothing(self) -> None:
        """Buffers, generators, and gradients that are not finite."""
        self.library.others = OtherRank(4)
        opt = self.make(seed=3)
        seen, drawn = [], []
        for x in trib.batches([torch.ones(2, 1), torch.rand(2, 1)]):
            (self.net(x).square().mean() * (float("nan") if len(seen) > 1 else 1.0)).backward()
            opt.step()
            opt.zero_grad()
            seen.append([one.detach().clone() for one in self.net.buffers()])
        drawn.append(torch.rand(1))
        for one, other in zip(seen[1], self.net.buffers()):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
        self.assertTrue(all(bool(p.isfinite().all()) for p in self.net.parameters()))
        self.assertFalse(torch.equal(seen[3][0], seen[1][0]))  # the batch did go through the net

    def test_passes_that_count_in_a_round_and_others(self) -> None:
        """3 batches, in rounds of two."""
        for options, weights in (({}, [1, 1]), ({"average": True}, [2, 1]), ({"overlap": "step"}, [1, 1])):
            with self.subTest(**options):
                self.anew()
                self.library.others = OtherRank(4)
                torch.manual_seed(1)
                self.net = torch.nn.Linear(1, 1)
                opt = self.make(**({} if "overlap" in options else {"accumulate": 2}), **options)
                gradients = []
                for number, x in enumerate(trib.batches([torch.full((2, 1), float(n + 1)) for n in range(3)])):
                    self.net(x).mean().backward()
                    if number % 2:
                        opt.step()
                        opt.zero_grad()
                        gradients.append(self.library.pushes[-1]["gradients"][0][0])
                self.assertEqual(self.weights(), weights)
                self.assertEqual(gradients, [3.0, 3.0])  # 1 + 2, 3 + nothing

    def test_samples_of_what_counts_nothing(self) -> None:
        self.library.others = OtherRank(2)
        opt = self.make()
        for x in trib.batches([torch.ones(2, 1)]):
            opt.samples(7)
            self.net(x).square().mean().backward()
            opt.step()
            opt.zero_grad()
        self.assertEqual(self.weights(), [7, 0])

    def test_local_steps_that_count_nothing(self) -> None:
        self.library.others = OtherRank(6)
        inner = torch.optim.AdamW(self.net.parameters(), lr=0.1)
        with trib.DiLoCo(self.net, inner, sync_every=2) as outer:
            for x in trib.batches([torch.ones(2, 1)] * 3):
                self.net(x).square().mean().backward()
                inner.step()
                inner.zero_grad()
        self.assertEqual((outer.round, self.weights()), (3, [1, 1, 0]))

    def test_until_the_first_rank_has_no_more(self) -> None:
        self.library.others = OtherRank(2)
        self.make()
        self.assertEqual(len(list(trib.batches([1, 2, 3, 4], until="first"))), 2)
        self.library.others = OtherRank(9)
        self.assertEqual(len(list(trib.batches([1, 2], until="first", name="other"))), 2)

    def test_several_loaders_at_once(self) -> None:
        self.make()
        pairs = list(zip(trib.batches([1, 2], name="a"), trib.batches([3, 4, 5], name="b")))
        self.assertEqual(pairs, [(1, 3), (2, 4)])

    def test_what_cannot_be(self) -> None:
        with self.assertRaisesRegex(ValueError, "until='any': must be 'all' or 'first' or 'own'"):
            trib.batches([], until="any")
        mine = DataLoader(range(4), sampler=trib.DistributedSampler(range(4)))
        with self.assertRaisesRegex(ValueError, "has a DistributedSampler, which knows its place"):
            trib.batches(mine)
        self.library.others = OtherRank(2)
        self.make()
        with self.assertRaisesRegex(RuntimeError, r"rank 0 has no batch at all.*until='first'"):
            list(trib.batches([]))

    def test_a_loader_that_is_gone_through_again_says_so(self) -> None:
        with self.assertRaises(Killed):
            self.process(shuffled, kill, 12)
        self._leave()
        with self.assertLogs(logger, "INFO") as logs:
            self.process(shuffled)
        self.assertIn("goes through its loader again, to its place after batch 2", "\n".join(logs.output))


if __name__ == "__main__":
    unittest.main()
