"""A DistributedDataParallel program whose process group was left in it: what ``test_launchers.py`` runs.

Only the optimizer, the sampler and the loop's ``range()`` are Tributary's. Lines "round ROUND LOSS" have the mean over
all ranks, which ``torch.distributed`` computes; "digest VALUE" is that of the parameters. The argument is a pause,
seconds a round.
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.utils.data import DataLoader
from trainer import dataset, digest, model

import tributary.torch as trib

EPOCHS, BATCH = 3, 16


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    assert (rank, os.environ["WORLD_SIZE"]) == (dist.get_rank(), str(dist.get_world_size()))
    torch.manual_seed(100 + rank)
    net = model(3 + rank)
    print("starts", rank, local, os.getpid(), flush=True)
    opt = trib.DistributedOptimizer(net, torch.optim.AdamW(net.parameters(), lr=0.01), name="group")
    sampler = trib.DistributedSampler(dataset(), seed=1)
    loader = DataLoader(dataset(), batch_size=BATCH, sampler=sampler)
    for epoch in trib.epochs(EPOCHS):
        for x, y in loader:
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            opt.step()
            opt.zero_grad()
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            mean /= dist.get_world_size()
            if rank == 0:
                print("round", opt.round, epoch, f"{mean.item():.6f}", flush=True)
            time.sleep(float(sys.argv[1]))
    dist.barrier()
    print("digest", digest(net), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
