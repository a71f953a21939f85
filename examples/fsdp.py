"""A GPT over bytes that fully_shard splits over the 2 ranks of each node, with a replica on each node.

tributary run --servers 2 --nodes 2 --ranks-per-node 2 -- python examples/fsdp.py
"""

import torch
import torch.distributed as dist
import tributary.torch as trib
from byte_gpt import ByteGPT, arguments, datasets
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.utils.data import DataLoader

args = arguments()
torch.set_num_threads(1)
dist.init_process_group("gloo", rank=trib.rank(), world_size=trib.world_size())
mesh = init_device_mesh("cpu", (trib.world_size() // 2, 2), mesh_dim_names=("dp", "fsdp"))
torch.manual_seed(0)  # all ranks begin with the same values, and each keeps its slices
model = ByteGPT(context=args.context)
for block in model.blocks:
    fully_shard(block, mesh=mesh["fsdp"])
fully_shard(model, mesh=mesh["fsdp"])

inner = torch.optim.AdamW(model.groups(), lr=1e-3)
opt = trib.DistributedOptimizer(model, inner, max_grad_norm=1.0, mesh=mesh, replicate="dp")
data, _ = datasets(args.text, args.bytes, args.context)
sampler = trib.DistributedSampler(data, seed=1)  # each rank has samples of its own
loader = DataLoader(data, batch_size=args.batch, sampler=sampler, drop_last=True)
for epoch in range(args.epochs):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        opt.step()
        opt.zero_grad()
        trib.log(loss=loss)
