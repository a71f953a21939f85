"""A small program that trains: what tests with daemons run. The arguments are Python keyword arguments of settings."""

from __future__ import annotations

import hashlib
import json
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset

import tributary.torch as trib
from tributary.torch import _formula

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


def dataset(samples: int = 512) -> TensorDataset:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(samples, 20, generator=generator)
    y = (x @ torch.randn(20, 5, generator=generator)).argmax(1)
    return TensorDataset(x, y)


def model(seed: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(20, 33), nn.Tanh(), nn.LayerNorm(33), nn.Linear(33, 5))


def groups_of(net: nn.Module, grouped: bool) -> list[dict[str, object]]:
    if not grouped:
        return [{"params": list(net.parameters())}]
    return [
        {"params": [p for p in net.parameters() if p.ndim > 1]},
        {"params": [p for p in net.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]


def digest(net: nn.Module) -> str:
    whole = hashlib.sha256()
    for name, p in net.named_parameters():
        whole.update(name.encode() + p.detach().contiguous().numpy().tobytes())
    return whole.hexdigest()[:16]


def main(settings: dict[str, object]) -> None:
    torch.set_num_threads(1)
    rounds = int(settings.get("rounds", 20))
    batch = int(settings.get("batch", 8))
    accumulate = int(settings.get("accumulate", 1))
    net = model()
    wrapped = OPTIMIZERS[str(settings.get("optimizer", "adamw"))](groups_of(net, bool(settings.get("grouped", False))))
    opt = trib.DistributedOptimizer(net, wrapped, accumulate=accumulate, **settings.get("options", {}))
    if opt._job.optimizer == _formula.MEAN:
        print("mean", flush=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, rounds) if settings.get("scheduler") else None
    sampler = trib.DistributedSampler(dataset(), seed=1)
    loader = DataLoader(dataset(), batch_size=batch, sampler=sampler)
    print("resumed", opt.round, flush=True)
    micro = 0
    while opt.round < rounds:
        for x, y in loader:
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            micro += 1
            if micro % accumulate:
                continue
            trib.log(loss=loss, accuracy=(net(x).argmax(1) == y).float().mean())
            opt.step()
            if scheduler is not None:
                scheduler.step()
            opt.zero_grad()
            if settings.get("pause"):
                time.sleep(float(settings["pause"]))
            if settings.get("told"):
                print("round", opt.round, flush=True)
            if opt.round >= rounds:
                break
    print("rate", opt.param_groups[0]["lr"])
    print("digest", digest(net), flush=True)
    if settings.get("save") and trib.rank() == 0:
        torch.save(net.state_dict(), settings["save"])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]) if len(sys.argv) > 1 else {})
