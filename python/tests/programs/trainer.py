"""A small program that trains, one job after another: what tests with daemons run.

The argument is a JSON list of settings. For each, lines "KEY NAME VALUE" report the result.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import tributary.torch as trib

OPTIMIZERS = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.1),
    "momentum": lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.9, dampening=0.1, weight_decay=0.01),
    "nesterov": lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda groups: torch.optim.Adam(groups, lr=0.01, weight_decay=0.01),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.01, betas=(0.8, 0.95)),
    "adagrad": lambda groups: torch.optim.Adagrad(groups, lr=0.05, lr_decay=0.01, initial_accumulator_value=0.1),
    "lion": lambda groups: trib.Lion(groups, lr=0.001, weight_decay=0.1),
    "rmsprop": lambda groups: torch.optim.RMSprop(groups, lr=0.003, momentum=0.5),
}
SAMPLES = 640


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(SAMPLES, 20, generator=generator)
    y = (x @ torch.randn(20, 5, generator=generator)).argmax(1)
    return TensorDataset(x, y)


def model(seed: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(20, 33), nn.Tanh(), nn.LayerNorm(33), nn.Linear(33, 5))


def optimizer_of(settings: dict[str, Any], net: nn.Module) -> torch.optim.Optimizer:
    """With "grouped" vectors have another decay and rate, with "rates" only another rate."""
    make = OPTIMIZERS[settings.get("optimizer", "adamw")]
    if not settings.get("grouped") and not settings.get("rates"):
        return make(list(net.parameters()))
    vectors: dict[str, Any] = {"params": [p for p in net.parameters() if p.ndim <= 1]}
    if settings.get("grouped"):
        vectors["weight_decay"] = 0.0
    optimizer = make([{"params": [p for p in net.parameters() if p.ndim > 1]}, vectors])
    optimizer.param_groups[1]["lr"] *= 0.5
    for group in optimizer.param_groups:
        group["lr"] *= settings.get("factor", 1.0)
    return optimizer


class Cycle(torch.optim.lr_scheduler.OneCycleLR):
    """OneCycleLR, which moves momentum and beta1 as well, and a weight decay that grows (DINO's schedule)."""

    def step(self, epoch: int | None = None) -> None:
        super().step(epoch)
        for group in self.optimizer.param_groups:
            group["weight_decay"] = 0.004 * self.last_epoch


def scheduler_of(settings: dict[str, Any], optimizer: torch.optim.Optimizer) -> Any:
    """A cosine's, or one that halves rates after the round "drop_at", or of all values ("cycle"); None."""
    if settings.get("cycle"):
        moves = any("betas" in group or group.get("momentum") for group in optimizer.param_groups)
        highest = [group["lr"] for group in optimizer.param_groups]
        return Cycle(optimizer, highest, total_steps=settings.get("rounds", 20) + 1, cycle_momentum=moves)
    if settings.get("scheduler"):
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.get("rounds", 20))
    if "drop_at" in settings:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: 1.0 if done < settings["drop_at"] else 0.5)
    return None


def digest(net: nn.Module) -> str:
    whole = hashlib.sha256()
    for name, p in net.named_parameters():
        whole.update(name.encode() + p.detach().contiguous().numpy().tobytes())
    return whole.hexdigest()[:16]


def train(settings: dict[str, Any]) -> None:
    name = settings["name"]
    rounds = settings.get("rounds", 20)
    accumulate = settings.get("accumulate", 1)
    net = model(3 + trib.rank())  # rank 0's counts
    wrapped = optimizer_of(settings, net)
    options = {"accumulate": accumulate, "average": accumulate > 1, **settings.get("options", {})}
    opt = trib.DistributedOptimizer(net, wrapped, name=name, **options)
    scheduler = scheduler_of(settings, opt)
    loader = DataLoader(
        dataset(), batch_size=settings.get("batch", 8), sampler=trib.DistributedSampler(dataset(), seed=1)
    )
    print("resumed", name, opt.round, flush=True)
    micro = 0
    while opt.round < rounds:
        for x, y in loader:
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            micro += 1
            if micro % accumulate:
                continue
            trib.log(loss=loss)
            opt.step()
            if scheduler is not None:
                scheduler.step()
            opt.zero_grad()
            if "pause" in settings:
                print("round", name, opt.round, flush=True)
                time.sleep(settings["pause"])
            if opt.round >= rounds:
                break
    if "save" in settings and trib.rank() == 0:
        torch.save(net.state_dict(), settings["save"])
    opt.finish()
    print("digest", name, digest(net), flush=True)


def batches(size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The batches of all ranks together, round by round."""
    data = dataset()
    for epoch in itertools.count():
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(1 + epoch))
        for begin in range(0, SAMPLES // size * size, size):
            yield data[order[begin : begin + size]]


def reference(settings: dict[str, Any], world: int) -> nn.Module:
    """Returns torch's model for the same settings in one process, on the batches of all ranks."""
    net = model(3)
    opt = optimizer_of(settings, net)
    scheduler = scheduler_of(settings, opt)
    clip = settings.get("options", {}).get("max_grad_norm")
    for x, y in itertools.islice(batches(settings.get("batch", 8) * world), settings.get("rounds", 20)):
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        opt.step()
        if scheduler is not None:
            scheduler.step()
    return net


if __name__ == "__main__":
    torch.set_num_threads(1)
    for wanted in json.loads(sys.argv[1]):
        train(wanted)
