"""The common base of tests against a library in Python."""

from __future__ import annotations

import unittest
from typing import Any
from unittest import mock

import torch
from fake import FakeLibrary
from torch import nn

import tributary.torch as trib
from tributary.torch._run.program import program


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.a = nn.Linear(4, 3)
        self.b = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.tanh(self.a(x)))


def forget_jobs() -> None:
    """As if another process began: its jobs are lost, and the program knows nothing of its loop."""
    for link in program.links:
        link.leaving.fail("the test is over")
    program.links.clear()
    program.begin_loop()
    program.names.clear()
    program._leads = None


class WithFake(unittest.TestCase):
    def setUp(self) -> None:
        self.library = FakeLibrary()
        patch = mock.patch("tributary._library.load", return_value=self.library)
        patch.start()
        self.addCleanup(patch.stop)
        self.addCleanup(self._leave)
        self.net = TwoLayers()

    def _leave(self) -> None:
        forget_jobs()
        program.stop.disarm()
        program.stop.requested = None
        program.stop.flag.value = 0

    def anew(self) -> None:
        """The next process begins another job."""
        self._leave()
        for known in (self.library.rounds, self.library.pushes, self.library.gathered):
            known.clear()
        self.library.kept.clear()
        self.library.answers.clear()

    def make(self, optimizer: Any = None, **options: Any) -> trib.DistributedOptimizer:
        optimizer = optimizer or torch.optim.SGD(self.net.parameters(), lr=0.1)
        return trib.DistributedOptimizer(self.net, optimizer, **options)

    def backward(self, seed: int = 0) -> torch.Tensor:
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(seed))
        loss = self.net(x).square().mean()
        loss.backward()
        return loss

    def check_as_alone(self, rounds: int, kind: Any = torch.optim.SGD, lr: float = 0.1) -> None:
        """The model is as after so many rounds of train() with a torch optimizer in one process."""
        twin = TwoLayers()
        reference = kind(twin.parameters(), lr=lr)
        for seed in range(rounds):
            x = torch.randn(5, 4, generator=torch.Generator().manual_seed(seed))
            twin(x).square().mean().backward()
            reference.step()
            reference.zero_grad()
        for p, q in zip(self.net.parameters(), twin.parameters()):
            torch.testing.assert_close(p, q)

    def values(self) -> list[torch.Tensor]:
        return [p.detach().clone() for p in self.net.parameters()]

    def train(self, opt: trib.DistributedOptimizer, rounds: int = 1) -> None:
        for _ in range(rounds):
            self.backward(opt.round)
            opt.step()
            opt.zero_grad()
