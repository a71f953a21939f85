"""The same programs with Tributary and with DistributedDataParallel on gloo, and what came of both.

Arguments: ``ddp`` or ``tributary``, a folder, and cases. Each rank writes CASE-HOW-RANK.pt: parameters, buffers, and
the last gradients, of Tributary this rank's own, of DDP their mean.
"""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Callable

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

STEPS = 50
PASSES = 4
RANKS = 2


def batch(rank: int, step: int, number: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + 10 * step + number)
    return torch.randn(6, 8, generator=generator)


class Way:
    """How models are trained: each of the two has a subclass."""

    rank = 0

    def made(self, net: nn.Module, optimizer: torch.optim.Optimizer, name: str, **options: Any) -> tuple[Any, Any]:
        """The module to call, and the optimizer to step."""
        raise NotImplementedError

    def no_sync(self, net: Any, optimizer: Any) -> Any:
        raise NotImplementedError


class Ddp(Way):
    def made(self, net: nn.Module, optimizer: torch.optim.Optimizer, name: str, **options: Any) -> tuple[Any, Any]:
        return DistributedDataParallel(net, find_unused_parameters="heads" in name), optimizer

    def no_sync(self, net: Any, optimizer: Any) -> Any:
        return net.no_sync()


class Tributary(Way):
    def made(self, net: nn.Module, optimizer: torch.optim.Optimizer, name: str, **options: Any) -> tuple[Any, Any]:
        import tributary.torch as trib

        return net, trib.DistributedOptimizer(net, optimizer, name=name, **options)

    def no_sync(self, net: Any, optimizer: Any) -> Any:
        return nullcontext() if optimizer._accumulate > 1 else optimizer.no_sync()


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.one, self.two = nn.Linear(8, 9), nn.Linear(9, 2), nn.Linear(9, 3)

    def forward(self, x: torch.Tensor, second: bool) -> torch.Tensor:
        return (self.two if second else self.one)(torch.tanh(self.trunk(x)))


class Adapted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(8, 8).requires_grad_(False)
        self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 9), nn.Tanh(), nn.Linear(9, 3))


def trained(net: nn.Module) -> list[nn.Parameter]:
    return [p for p in net.parameters() if p.requires_grad]


def adamw(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(trained(net), lr=0.01)


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(trained(net), lr=0.05, momentum=0.9)


def accumulated(way: Way, name: str, passes: int = PASSES, **options: Any) -> list[nn.Module]:
    net = plain()
    called, optimizer = way.made(net, adamw(net), name, **options)
    for step in range(STEPS):
        optimizer.zero_grad()
        for number in range(passes):
            with way.no_sync(called, optimizer) if number < passes - 1 else nullcontext():
                (called(batch(way.rank, step, number)).square().mean() / passes).backward()
        optimizer.step()
    return [net]


def heads(way: Way, name: str) -> list[nn.Module]:
    net = Heads()
    called, optimizer = way.made(net, sgd(net), name)
    for step in range(STEPS):
        optimizer.zero_grad()
        for number in range(PASSES):
            with way.no_sync(called, optimizer) if number < PASSES - 1 else nullcontext():
                second = number == PASSES - 1 or (number < 2 and (step + way.rank) % 2 == 0)
                (called(batch(way.rank, step, number), second).square().mean() / PASSES).backward()
        optimizer.step()
    return [net]


def simple(way: Way, name: str, net: nn.Module, optimizer: torch.optim.Optimizer) -> list[nn.Module]:
    called, optimizer = way.made(net, optimizer, name)
    for step in range(STEPS):
        optimizer.zero_grad()
        called(batch(way.rank, step)).square().mean().backward()
        optimizer.step()
    return [net]


def norms(way: Way, name: str) -> list[nn.Module]:
    net = nn.Sequential(nn.Linear(8, 9), nn.BatchNorm1d(9), nn.Linear(9, 3))
    return simple(way, name, net, sgd(net))  # the first bias' gradient is rounding, which AdamW would blow up


def adapters(way: Way, name: str) -> list[nn.Module]:
    net = Adapted()
    return simple(way, name, net, adamw(net))


def gan(way: Way, name: str) -> list[nn.Module]:
    """As torch's DCGAN tutorial has it: two passes of D a step, and G's pass leaves gradients in D."""
    g, d = nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 9), nn.Tanh(), nn.Linear(9, 1))
    called_d, optimizer_d = way.made(d, sgd(d), name + "-d", overlap="step")
    called_g, optimizer_g = way.made(g, sgd(g), name + "-g")
    for step in range(STEPS):
        d.zero_grad()
        real = called_d(batch(way.rank, step))
        F.binary_cross_entropy_with_logits(real, torch.ones_like(real)).backward()
        made = called_g(batch(way.rank, step, 1))
        fake = called_d(made.detach())
        F.binary_cross_entropy_with_logits(fake, torch.zeros_like(fake)).backward()
        optimizer_d.step()
        g.zero_grad()
        judged = called_d(made)
        F.binary_cross_entropy_with_logits(judged, torch.ones_like(judged)).backward()
        optimizer_g.step()
    d.zero_grad()  # what G's pass left
    return [g, d]


def unfrozen(way: Way, name: str) -> list[nn.Module]:
    """The first layer trains from the middle on: DistributedDataParallel is made again then."""
    net = plain()
    net[0].requires_grad_(False)
    called, optimizer = way.made(net, torch.optim.AdamW(net[2].parameters(), lr=0.01), name)
    optimizers = [optimizer]
    for step in range(STEPS):
        if step == STEPS // 2:
            net[0].requires_grad_(True)
            called = None
            called, optimizer = way.made(net, torch.optim.AdamW(net[0].parameters(), lr=0.01), name + "-first")
            optimizers.append(optimizer)
        for one in optimizers:
            one.zero_grad()
        called(batch(way.rank, step)).square().mean().backward()
        for one in optimizers:
            one.step()
    return [net]


CASES: dict[str, Callable[[Way, str], list[nn.Module]]] = {
    "no_sync": accumulated,
    "accumulate": lambda way, name: accumulated(way, name, accumulate=PASSES),
    "uneven": lambda way, name: accumulated(way, name, PASSES - 2 * way.rank),  # ranks have different numbers of passes
    "heads": heads,
    "norms": norms,
    "gan": gan,
    "adapters": adapters,
    "unfrozen": unfrozen,
}


def run(way: Way, how: str, folder: str, cases: list[str]) -> None:
    torch.set_num_threads(1)
    for case in cases:
        torch.manual_seed(4)
        nets = CASES[case](way, case)
        state = [net.state_dict() for net in nets]
        gradients = [
            {name: p.grad for name, p in net.named_parameters() if p.requires_grad and p.grad is not None}
            for net in nets
        ]
        torch.save((state, gradients), Path(folder) / f"{case}-{how}-{way.rank}.pt")


def run_ddp(rank: int, folder: str, cases: list[str]) -> None:
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    way = Ddp()
    way.rank = rank
    run(way, "ddp", folder, cases)
    dist.barrier()
    os._exit(0)  # gloo's threads may abort the end of a process


if __name__ == "__main__":
    _, how, folder, *cases = sys.argv
    if how == "ddp":
        torch.multiprocessing.spawn(run_ddp, (folder, cases), nprocs=RANKS)
    else:
        way = Tributary()
        way.rank = int(os.environ["RANK"])
        run(way, how, folder, cases)
