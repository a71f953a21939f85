"""DistributedSampler: the samples of each rank, and the place where it continues."""

from __future__ import annotations

import os
import signal
import sys
import unittest
from typing import Any
from unittest import mock

import torch
from torch.utils.data import DataLoader, Dataset

import tributary.torch as trib
from tributary.torch._model.parallel import Part
from tributary.torch._run.loop import Loop
from tributary.torch._run.program import program


class FakeLink:
    def __init__(self, accumulate: int = 1) -> None:
        self.round = 0
        self.rewinds = 0
        self.accumulate = accumulate
        self.closed = False
        self.attached = True
        self.leaving = mock.Mock()
        self.view = mock.Mock(rank=int(os.environ.get("RANK", "0")), world_size=int(os.environ.get("WORLD_SIZE", "1")))
        self.part: Any = Part()

    def at_top(self, draws: bool) -> None:
        pass


def batches(rank: int, world: int, samples: int = 50, size: int = 3, link: Any = None, **options: Any) -> list[Any]:
    with (
        mock.patch.dict(os.environ, {"RANK": str(rank), "WORLD_SIZE": str(world)}),
        mock.patch.object(program.jobs, "links", [link] if link else []),
        mock.patch.object(program, "loop", Loop(program._passes_top, program.values)),
    ):
        if link:
            link.view = mock.Mock(rank=rank, world_size=world)
        sampler = trib.DistributedSampler(range(samples), seed=4, **options)
        return [batch.tolist() for batch in DataLoader(range(samples), batch_size=size, sampler=sampler)]


class Sampling(unittest.TestCase):
    def order(self) -> list[int]:
        return torch.randperm(50, generator=torch.Generator().manual_seed(4)).tolist()

    def test_a_batch_of_all_ranks_is_a_piece_of_the_order(self) -> None:
        order = self.order()
        for world in (1, 2, 4):
            ranks = [batches(rank, world) for rank in range(world)]
            for number, parts in enumerate(zip(*ranks)):
                together = sorted(sample for part in parts for sample in part)
                size = 3 * world
                self.assertEqual(together, sorted(order[number * size : (number + 1) * size]))
            self.assertEqual([len(part) for part in ranks], [50 // (3 * world)] * world)

    def test_a_rank_takes_every_nth(self) -> None:
        order = self.order()
        self.assertEqual(batches(1, 4)[1], [order[(3 + i) * 4 + 1] for i in range(3)])

    def test_ranks_of_a_replica_have_the_same_batches(self) -> None:
        for rank, replica in ((0, 0), (1, 0), (2, 1), (3, 1)):
            link = FakeLink()
            link.part = mock.Mock(replica=replica, replicas=2)
            self.assertEqual(batches(rank, 4, link=link), batches(replica, 2))

    def test_accumulated_batches_are_those_of_ranks(self) -> None:
        four = [batches(rank, 4) for rank in range(4)]
        one = batches(0, 1, link=FakeLink(accumulate=4))
        self.assertEqual(one, [batch for round in zip(*four) for batch in round])
        two = [batches(rank, 2, link=FakeLink(accumulate=2)) for rank in range(2)]
        self.assertEqual(two[1][0], four[2][0])
        self.assertEqual(two[1][1], four[3][0])

    def test_epochs_differ_and_repeat(self) -> None:
        sampler = trib.DistributedSampler(range(50), seed=4, batch_size=5)
        first, second = list(sampler), list(sampler)
        self.assertNotEqual(first, second)
        sampler.set_epoch(0)
        self.assertEqual(list(sampler), first)
        self.assertEqual(len(sampler), 50)
        unshuffled = trib.DistributedSampler(range(50), shuffle=False, batch_size=5)
        self.assertEqual(list(unshuffled), list(range(50)))

    def test_with_worker_processes(self) -> None:
        sampler = trib.DistributedSampler(range(50), seed=4)
        loader = DataLoader(range(50), batch_size=3, sampler=sampler, num_workers=1)
        self.assertEqual([batch.tolist() for batch in loader], batches(0, 1))

    def test_a_process_that_dies_when_the_loader_has_failed_hits_nobody(self) -> None:
        class Broken(Dataset[int]):
            def __len__(self) -> int:
                return 8

            def __getitem__(self, index: int) -> int:
                raise ValueError("broken")

        with mock.patch.object(torch.utils.data._utils.signal_handling, "_SIGCHLD_handler_set", False):
            batches = iter(DataLoader(Broken(), sampler=trib.DistributedSampler(Broken()), num_workers=1))
        with self.assertRaisesRegex(ValueError, "broken"):
            next(batches)
        (process,) = batches._workers  # type: ignore[attr-defined]
        process.kill()
        died = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        self.assertEqual(died.si_status if died else None, signal.SIGKILL)

    def test_what_accelerate_holds_back_is_not_taken(self) -> None:
        state = mock.Mock()
        with (
            mock.patch.object(program, "loop", Loop(program._passes_top, program.values)),
            mock.patch.dict(sys.modules, {"accelerate.state": state}),
        ):
            sampler = trib.DistributedSampler(range(12))
            sampler._trains = True
            loader = DataLoader(range(12), batch_size=4, sampler=sampler)
            state.GradientState().active_dataloader = mock.Mock(base_dataloader=loader)
            batches = iter(loader)
            dealt = []
            for _ in range(4):
                place = sampler.place()
                dealt.append(place and place["dealt"])
                next(batches, None)
            dealt.append(sampler._turn.dealt(sampler.ahead) if sampler._turn else None)
        self.assertEqual(dealt, [0, 0, 4, 8, 12])

    def test_a_loop_that_draws_ahead_says_so(self) -> None:
        with mock.patch.object(program, "loop", Loop(program._passes_top, program.values)):
            sampler = trib.DistributedSampler(range(12), ahead=1)
            sampler._trains = True
            batches = iter(DataLoader(range(12), batch_size=4, sampler=sampler))
            next(batches)
            next(batches)
            place = sampler.place()
        self.assertEqual(place and place["dealt"], 4)

    def test_loaders_that_iterate_by_themselves(self) -> None:
        class StatefulDataLoader(DataLoader[Any]):  # as torchdata's
            def __iter__(self) -> Any:
                iter(self.batch_sampler)  # looked at
                self.iterator = self._get_iterator()
                return self.iterator

        with mock.patch.object(program, "loop", Loop(program._passes_top, program.values)):
            sampler = trib.DistributedSampler(range(12))
            sampler._trains = True
            batches = iter(StatefulDataLoader(range(12), batch_size=2, sampler=sampler, num_workers=1))
            next(batches)
            place = sampler.place()
        self.assertEqual(place and place["dealt"], 2)

    def test_what_cannot_be(self) -> None:
        with self.assertRaisesRegex(ValueError, "how many samples a batch has is not known"):
            iter(trib.DistributedSampler(range(50)))
        with self.assertRaisesRegex(ValueError, "2 samples make no round of 1 ranks with 1 batches of 3"):
            iter(trib.DistributedSampler(range(2), batch_size=3))


if __name__ == "__main__":
    unittest.main()
