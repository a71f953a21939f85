"""Loops that end, and continue: the common part of their tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Callable

import torch
from torch import nn
from torch.utils.data import DataLoader
from with_fake import WithFake

import tributary.torch as trib
from tributary.torch._base import plain
from tributary.torch._run.program import program

SAMPLES, BATCH = 16, 2
EPOCHS, ROUNDS = 3, 24


class Killed(BaseException):
    """Stands for a signal that is never seen."""


def kill() -> None:
    raise Killed


class Net(nn.Module):
    """With a buffer and random numbers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.net = nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Dropout(0.3), nn.Linear(4, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


class Run:
    """A process of a loop, and the record of its points, batches and losses."""

    def __init__(self, test: WithFake, end: Callable[[], None] | None, at: int) -> None:
        self.test = test
        self.end = end
        self.at = at
        self.points = 0
        self.batches: dict[int, list[int]] = {}  # by round
        self.losses: dict[int, float] = {}
        self.agreed: dict[tuple[str, int], float] = {}  # what all ranks have alike, by round or epoch

    def __call__(self) -> None:
        """A point of the loop."""
        self.points += 1
        if self.end is not None and self.points == self.at:
            self.end()

    def optimizer(self, inner: torch.optim.Optimizer | None = None, **options: Any) -> trib.DistributedOptimizer:
        self.opt = self.test.make(inner, **options)
        return self.opt

    def loader(self, workers: int = 0, **options: Any) -> DataLoader[Any]:
        sampler = trib.DistributedSampler(range(SAMPLES), seed=1)
        return DataLoader(range(SAMPLES), batch_size=BATCH, sampler=sampler, num_workers=workers, **options)

    def train(self, batch: torch.Tensor, step: bool = True, factor: float = 1.0) -> None:
        self.batches.setdefault(self.opt.round + 1, [])
        if self.fresh_round():
            self.batches[self.opt.round + 1] = []
        if not program.loop.is_void:
            self.batches[self.opt.round + 1] += batch.tolist()
        self()
        loss = self.test.net(batch.float()[:, None] / SAMPLES).square().mean() * factor
        self.losses[self.opt.round + 1] = loss.item()
        loss.backward()
        self()
        if step:
            self.opt.step()
            self()
            self.opt.zero_grad()

    def fresh_round(self) -> bool:
        return all(p.grad is None for p in self.test.net.parameters())


def other_rank(data: bytes) -> bytes:
    """As if another rank had twice as much of everything."""
    call, value = plain.decoded(data)
    twice = tuple(2 * one for one in value) if isinstance(value, tuple) else value
    return plain.encoded((call, 2 * value if isinstance(value, torch.Tensor) else twice), "")


Calm = tuple[Run, list[float], list[torch.Tensor]]  # an undisturbed run, its rates, and the values at its end


class WithEnds(WithFake):
    def process(self, loop: Callable[[Run], None], end: Callable[[], None] | None = None, at: int = 0) -> Run:
        """One process, from its start."""
        torch.manual_seed(99)
        self.net = Net()
        run = Run(self, end, at)
        loop(run)
        trib.finish()
        return run

    def setUp(self) -> None:
        super().setUp()
        self.calm_runs: dict[Callable[[Run], None], Calm] = {}

    def calm(self, loop: Callable[[Run], None]) -> Calm:
        """The undisturbed run of a loop, which runs once in a test."""
        if loop not in self.calm_runs:
            self.anew()
            run = self.process(loop)
            self.calm_runs[loop] = run, self.rates(), self.whole()
        return self.calm_runs[loop]

    def rates(self) -> list[float]:
        return [push["rates"][0] for push in self.library.pushes]

    def whole(self) -> list[torch.Tensor]:
        mine = [*self.net.parameters(), *self.net.buffers()]
        return [*self.values(), *(one.detach().clone().float() for one in mine)]

    def go_on(self, loop: Callable[[Run], None], end: Callable[[], None], at: int) -> None:
        """The calm run, and one that ends at a point and continues."""
        run, rates, values = self.calm(loop)
        self.anew()
        batches: dict[int, list[int]] = {}
        try:
            first = Run(self, end, at)
            torch.manual_seed(99)
            self.net = Net()
            loop(first)
            trib.finish()
        except (Killed, trib.Stopped):
            pass
        batches.update(first.batches)
        self._leave()
        again = self.process(loop)
        batches.update(again.batches)
        where = f"{loop.__name__}, ended at point {at}"
        self.assertEqual(self.rates(), rates, where)
        self.assertEqual(batches, run.batches, where)
        self.assertEqual({**first.agreed, **again.agreed}, run.agreed, where)
        self.check_same(again, run, values, where)

    def goes_back(self, loop: Callable[[Run], None], calm: Calm, events: dict[int, str], at: int, back: int) -> None:
        """A living process whose job goes back has the calm run's batches and values.

        events: of the library: those of rounds, or of calls.
        """
        run, _, values = calm
        self.anew()
        events[at] = f"back to {back}"
        again = self.process(loop)
        self.assertEqual(events, {})
        self.assertEqual(again.batches, run.batches)
        self.check_same(again, run, values)

    def check_same(self, again: Run, run: Run, values: list[torch.Tensor], where: str | None = None) -> None:
        for one, other in zip(self.whole(), values):
            torch.testing.assert_close(one, other, rtol=0, atol=0, msg=where)
        for one, other in zip(getattr(again, "average", []), getattr(run, "average", [])):
            torch.testing.assert_close(one, other, rtol=0, atol=0, msg=where)

    def at_points(self, loop: Callable[[Run], None]) -> Iterator[int]:
        return iter(range(2, self.calm(loop)[0].points + 1, 7))
