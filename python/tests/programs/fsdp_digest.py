"""Trains a small model whose tensors are of uneven sizes, and prints "digest HEX" of its parameters on rank 0.

python fsdp_digest.py adamw|rmsprop ROUNDS

Two nodes of two ranks split it by fully_shard, but for a norm that is not split; one process takes four passes a round.
"""

from __future__ import annotations

import hashlib
import sys
import time

import torch
import torch.distributed as dist
from fsdp_ranks import DATA, Net, loss_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader

import tributary.torch as trib

OPTIMIZERS = {"adamw": torch.optim.AdamW, "rmsprop": torch.optim.RMSprop}


def main() -> None:
    kind, rounds = OPTIMIZERS[sys.argv[1]], int(sys.argv[2])
    torch.set_num_threads(1)
    net = Net()
    if trib.world_size() == 1:
        opt = trib.DistributedOptimizer(net, kind(net.parameters(), lr=0.01), accumulate=4, average=True)
    else:
        dist.init_process_group("gloo", rank=trib.rank(), world_size=trib.world_size())
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "fsdp"))
        for module in (net.body, net.head):
            fully_shard(module, mesh=mesh["fsdp"])
        opt = trib.DistributedOptimizer(net, kind(net.parameters(), lr=0.01), mesh=mesh, replicate="dp")
    loader = DataLoader(DATA, batch_size=4, sampler=trib.DistributedSampler(DATA, seed=1))
    while opt.round < rounds:
        for number, (x, y) in enumerate(loader):
            loss = loss_of(net, x, y)
            loss.backward()
            if trib.world_size() == 1 and number % 4 != 3:
                continue
            opt.step()
            opt.zero_grad()
            if trib.world_size() > 1:
                print(f"round {opt.round}", flush=True)
                time.sleep(0.05)  # to be killed in
            if opt.round == rounds:
                break
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in net.parameters()]
    if trib.rank() == 0:
        data = b"".join(p.detach().numpy().tobytes() for p in whole)
        print("digest", hashlib.sha256(data).hexdigest()[:16], flush=True)


main()
