"""Loops as people write them, as programs: ``loops.py NAME``. A DataLoader has ``$TRIBUTARY_LOOPS_PROCESSES``.

Before each step a rank says what the round is made of, and at the end what came of it, in ``$TRIBUTARY_LOOPS/rank-N``.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Subset, TensorDataset

import tributary.torch as trib
from tributary.torch._run import alike

EPOCHS, BATCH, SAMPLES = 3, 8, 160
CLIP = 0.1
PROCESSES = int(os.environ.get("TRIBUTARY_LOOPS_PROCESSES", "0"))
PAUSE_S = float(os.environ.get("TRIBUTARY_LOOPS_PAUSE", "0.02"))


class Net(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.Sequential(
            nn.Linear(8, width), nn.BatchNorm1d(width), nn.Tanh(), nn.Dropout(0.2), nn.Linear(width, 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(SAMPLES, 8, generator=generator)
    return TensorDataset(x, x.sum(1, keepdim=True), torch.arange(SAMPLES))


def loader(**options: Any) -> DataLoader[Any]:
    dataset = data()
    return DataLoader(
        dataset, batch_size=BATCH, sampler=trib.DistributedSampler(dataset, seed=1), num_workers=PROCESSES, **options
    )


class Said:
    """The file of a rank's lines, and the values that it has reported."""

    def __init__(self, net: nn.Module, groups: Any) -> None:
        self.net, self.groups = net, groups
        self.file = open(Path(os.environ["TRIBUTARY_LOOPS"]) / f"rank-{trib.rank()}", "a")  # noqa: SIM115
        self.values: dict[str, float] = {}

    def pass_of(self, batch: Any, round: int, factor: float = 1.0) -> torch.Tensor:
        x, y, index = batch
        loss = F.mse_loss(self.net(x), y)
        self.line("round", round, loss, index)
        (loss * factor).backward()
        time.sleep(PAUSE_S)
        return loss.detach()

    def line(self, word: str, round: int, loss: torch.Tensor, index: torch.Tensor) -> None:
        samples = ",".join(map(str, index.tolist()))
        rate = f"{self.groups[0]['lr']:.9f}"
        self.file.write(f"{word} {round} rate {rate} samples {samples} loss {loss.item():.9f}\n")
        self.file.flush()

    def value(self, of: str, number: int, value: float) -> None:
        """Writes a value that is equal on all ranks."""
        self.values[of] = value
        self.file.write(f"{of} {number} {value!r}\n")
        self.file.flush()

    def norm(self, round: int) -> None:
        """Writes the weights' norm after a step. A job that went back to its beginning meanwhile has made none."""
        if round:
            self.value("norm", round, self.net.weight.norm().item())

    def end(self, round: int) -> None:
        whole = hashlib.sha256()
        for value in [*self.net.parameters(), *self.net.buffers()]:
            whole.update(value.detach().contiguous().numpy().tobytes())
        self.file.write(f"end {round} {whole.hexdigest()[:16]}\n")
        self.file.flush()


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)


def per_epoch() -> None:
    net = Net()
    inner = sgd(net)
    scheduler = lr_scheduler.StepLR(inner, 1, 0.5)
    opt = trib.DistributedOptimizer(net, inner)
    said, batches = Said(net, opt.param_groups), loader()
    for epoch in range(EPOCHS):
        batches.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        for batch in batches:
            said.pass_of(batch, opt.round + 1)
            opt.step()
            opt.zero_grad()
        scheduler.step()
    said.end(opt.round)


def one_cycle() -> None:
    net = Net()
    inner = sgd(net)
    scheduler = lr_scheduler.OneCycleLR(inner, 0.2, total_steps=31, cycle_momentum=False)
    opt = trib.DistributedOptimizer(net, inner)
    said, batches = Said(net, opt.param_groups), loader()
    for _ in range(EPOCHS):
        for batch in batches:
            said.pass_of(batch, opt.round + 1)
            opt.step()
            scheduler.step()
            opt.zero_grad()
    said.end(opt.round)


def max_steps() -> None:
    net = Net()
    opt = trib.DistributedOptimizer(net, sgd(net))
    scheduler = lr_scheduler.CosineAnnealingLR(opt, 30)
    said, batches = Said(net, opt.param_groups), loader()
    left = iter(batches)
    for _ in trib.rounds(30):
        try:
            batch = next(left)
        except StopIteration:
            left = iter(batches)
            batch = next(left)
        said.pass_of(batch, opt.round + 1)
        opt.step()
        scheduler.step()
        opt.zero_grad()
    said.end(opt.round)


def rate_by_hand() -> None:
    """As nanoGPT: batches by random numbers, an evaluation now and then, the rate set in each round."""
    net = Net()
    opt = trib.DistributedOptimizer(net, sgd(net))
    said = Said(net, opt.param_groups)
    x, y, index = data().tensors

    def draw() -> Any:
        chosen = torch.randint(SAMPLES, (BATCH,))
        return x[chosen], y[chosen], index[chosen]

    for step in trib.rounds(30):
        for group in opt.param_groups:
            group["lr"] = 0.05 * (1 - step / 40)
        if step % 7 == 0:
            net.eval()
            with torch.no_grad():
                net(draw()[0])
            net.train()
        said.pass_of(draw(), opt.round + 1)
        opt.step()
        opt.zero_grad()
    said.end(opt.round)


def no_sync() -> None:
    net = Net()
    opt = trib.DistributedOptimizer(net, sgd(net))
    scheduler = lr_scheduler.ExponentialLR(opt, 0.9)
    said, batches = Said(net, opt.param_groups), loader()
    for _ in trib.epochs(EPOCHS):
        for number, batch in enumerate(batches):
            last = number % 2 == 1
            with contextlib.nullcontext() if last else opt.no_sync():
                said.pass_of(batch, opt.round + 1, 0.5)
            if last:
                opt.step()
                scheduler.step()
                opt.zero_grad()
    said.end(opt.round)


def accumulate() -> None:
    net = Net()
    opt = trib.DistributedOptimizer(net, sgd(net), accumulate=2)
    said, batches = Said(net, opt.param_groups), loader()
    for _ in range(EPOCHS):
        for number, batch in enumerate(batches):
            said.pass_of(batch, opt.round + 1, 0.5)
            if number % 2 == 1:
                opt.step()
                opt.zero_grad()
    said.end(opt.round)


def plateau() -> None:
    """By values that ranks gather, at its beginning, in each iteration, and between epochs."""
    net = Net()
    opt = trib.DistributedOptimizer(net, sgd(net), on_rewind="raise")
    patience = trib.broadcast(0 if trib.is_main() else None)
    scheduler = lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=patience, threshold=0.5)
    said, batches, judged = Said(net, opt.param_groups), loader(), loader()
    for epoch in trib.epochs(EPOCHS):
        for batch in batches:
            try:
                said.value("samples", opt.round, trib.all_reduce(batch[2].sum(), "max").item())
                loss = said.pass_of(batch, opt.round + 1)
                opt.step()
                opt.zero_grad()
                trib.log(loss=loss)
                said.value("mean", opt.round, trib.all_reduce(loss.item()))
            except trib.Rewound:
                pass  # what is left of the iteration is of no round
        assert sum(len(x) for x, _, _ in judged) == SAMPLES // trib.world_size()
        try:
            said.value("epoch", epoch, trib.metric("loss"))
        except trib.Rewound:
            continue
        scheduler.step(said.values["epoch"])
    said.end(opt.round)


def diloco() -> None:
    net = Net()
    inner = torch.optim.AdamW(net.parameters(), lr=0.01)
    scheduler = lr_scheduler.CosineAnnealingLR(inner, 40)
    outer = trib.DiLoCo(net, inner, sync_every=3)
    said, batches = Said(net, inner.param_groups), loader()
    with outer:
        for _ in range(EPOCHS):
            for number, batch in enumerate(batches):
                said.pass_of(batch, outer.round + 1, 0.5)
                if number % 2 == 1:
                    inner.step()
                    scheduler.step()
                    inner.zero_grad()
    said.end(outer.round)


def gan() -> None:
    """Two jobs. The generator's pass goes through the judge, which was stepped in between."""
    judge = Net()
    net = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))
    judges = trib.DistributedOptimizer(judge, sgd(judge), name="judge", overlap="step", on_rewind="raise")
    opt = trib.DistributedOptimizer(net, torch.optim.AdamW(net.parameters(), lr=0.01), name="generator")
    schedulers = [lr_scheduler.ExponentialLR(judges, 0.9), lr_scheduler.CosineAnnealingLR(opt, 40)]
    torch.manual_seed(trib.rank())  # noise of its own
    said, batches = Said(judge, judges.param_groups), loader()
    for _ in range(EPOCHS):
        for x, _, index in batches:
            fake = net(torch.randn(BATCH, 4))
            judges.zero_grad()
            loss = (judge(x) - 1).square().mean()
            loss.backward()
            false = judge(fake.detach()).square().mean()
            false.backward()
            said.line("round", judges.round + 1, loss + false, index)
            try:
                judges.step()
            except trib.Rewound:
                continue  # what is left of the iteration is of no round, and nothing is to be said of it
            schedulers[0].step()
            opt.zero_grad()
            loss = (judge(fake) - 1).square().mean()
            said.line("generator", opt.round + 1, loss, index)
            loss.backward()
            opt.step()
            schedulers[1].step()
    said.end(judges.round)
    Said(net, opt.param_groups).end(1000 + opt.round)


def unfrozen() -> None:
    """The first layer trains from the second epoch on, in a job of its own."""
    net = Net()
    first, rest = net.layers[:1].requires_grad_(False), net.layers[1:]
    opt = trib.DistributedOptimizer(net, torch.optim.AdamW(rest.parameters(), lr=0.01), name="rest")
    said, batches = Said(net, opt.param_groups), loader()

    def trains_too() -> trib.DistributedOptimizer:
        first.requires_grad_(True)
        return trib.DistributedOptimizer(net, torch.optim.AdamW(first.parameters(), lr=0.01), name="first")

    later = None
    for epoch in trib.epochs(EPOCHS):
        batches.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        if epoch > 0 and later is None:
            later = trains_too()
        for batch in batches:
            said.pass_of(batch, opt.round + 1)
            opt.step()
            opt.zero_grad()
            if later is not None:
                later.step()
                later.zero_grad()
    if later is None:  # a process that begins after the last round
        later = trains_too()
    said.end(opt.round)


def steps_here() -> None:
    """An optimizer that only torch has, with more state than goes with messages."""
    net = Net(4096)
    opt = trib.DistributedOptimizer(
        net,
        torch.optim.RMSprop(net.parameters(), lr=0.001, momentum=0.9),
        job={"snapshot": {"every_rounds": 5}},
        on_rewind="raise",
    )
    scheduler = lr_scheduler.StepLR(opt, 7, 0.5)
    said, batches = Said(net, opt.param_groups), loader()
    for _ in trib.epochs(EPOCHS):
        for batch in batches:
            said.pass_of(batch, opt.round + 1)
            try:
                opt.step()
            except trib.Rewound:
                continue
            opt.zero_grad()
            scheduler.step()
    said.end(opt.round)


def steps_here_apart() -> None:
    """The same as if it were too large to go with each round."""
    alike.EACH_ROUND = 0
    steps_here()


def uneven() -> None:
    """Each rank has data of its own, rank 0 more of them, in an order that it draws."""
    torch.manual_seed(3)
    net = nn.Linear(8, 1)
    opt = trib.DistributedOptimizer(net, sgd(net))
    torch.manual_seed(11 + trib.rank())
    said = Said(net, opt.param_groups)
    mine = Subset(data(), shard(trib.rank()))
    batches = DataLoader(mine, batch_size=BATCH, shuffle=True, num_workers=PROCESSES)
    for _ in trib.epochs(EPOCHS):
        for x, y, index in (given := trib.batches(batches)):
            loss = F.mse_loss(net(x), y)
            if given.counts:
                said.line("round", opt.round + 1, loss, index)
            loss.backward()
            time.sleep(PAUSE_S)
            opt.step()
            opt.zero_grad()
            said.norm(opt.round)
    said.end(opt.round)


def clipped_here() -> None:
    """By value, and the mean over ranks."""
    torch.manual_seed(3)
    net = nn.Linear(8, 1)
    inner = sgd(net)
    inner.register_step_pre_hook(lambda *_: nn.utils.clip_grad_value_(net.parameters(), CLIP))
    opt = trib.DistributedOptimizer(net, inner, step_on="trainers")
    said, batches = Said(net, opt.param_groups), loader()
    for _ in trib.epochs(EPOCHS):
        for batch in batches:
            said.pass_of(batch, opt.round + 1)
            opt.step()
            opt.zero_grad()
            said.norm(opt.round)
    said.end(opt.round)


def shard(rank: int) -> range:
    """Samples of 10 batches on rank 0, of 7 on others."""
    return range(80) if rank == 0 else range(80, 80 + 7 * BATCH)


LOOPS = (
    per_epoch,
    one_cycle,
    max_steps,
    rate_by_hand,
    no_sync,
    accumulate,
    plateau,
    diloco,
    gan,
    unfrozen,
    steps_here,
    steps_here_apart,
    uneven,
    clipped_here,
)

if __name__ == "__main__":
    torch.set_num_threads(1)
    {loop.__name__: loop for loop in LOOPS}[sys.argv[1]]()
