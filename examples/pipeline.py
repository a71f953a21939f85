"""A GPT over bytes in a pipeline of 2 stages, with replicas of it: embedding and head are tied, in different stages.

tributary run --servers 2 --nodes 2 --ranks-per-node 2 -- python examples/pipeline.py
"""

import torch
import torch.distributed as dist
import tributary.torch as trib
from byte_gpt import ByteGPT, arguments, datasets, groups_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn import functional as F
from torch.utils.data import DataLoader


class First(torch.nn.Module):
    """Keeps the names that its tensors have in the whole model."""

    def __init__(self, model: ByteGPT) -> None:
        super().__init__()
        self.embedding, self.positions, self.blocks = model.embedding, model.positions, model.blocks
        for i in range(len(model.blocks) // 2, len(model.blocks)):
            self.blocks[i] = torch.nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(self.embedding(x) + self.positions[: x.shape[1]])


class Last(torch.nn.Module):
    def __init__(self, model: ByteGPT) -> None:
        super().__init__()
        self.embedding, self.blocks, self.norm = model.embedding, model.blocks, model.norm
        for i in range(len(model.blocks) // 2):
            self.blocks[i] = torch.nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(self.norm(self.blocks(x)), self.embedding.weight)


args = arguments()
torch.set_num_threads(1)
dist.init_process_group("gloo", rank=trib.rank(), world_size=trib.world_size())
mesh = init_device_mesh("cpu", (2, trib.world_size() // 2), mesh_dim_names=("pp", "dp"))  # a node has one stage
torch.manual_seed(0)  # the tied weight begins with the same values in both stages
first = mesh.get_local_rank("pp") == 0
module = (First if first else Last)(ByteGPT(context=args.context))
stage = PipelineStage(module, mesh.get_local_rank("pp"), 2, torch.device("cpu"), group=mesh.get_group("pp"))
pipeline = ScheduleGPipe(stage, 4, loss_fn=lambda y, target: F.cross_entropy(y.flatten(0, 1), target.flatten()))

inner = torch.optim.AdamW(groups_of(module), lr=1e-3)
opt = trib.DistributedOptimizer(module, inner, max_grad_norm=1.0, mesh=mesh, replicate="dp", overlap="step")
data, _ = datasets(args.text, args.bytes, args.context)
sampler = trib.DistributedSampler(data, seed=1)
loader = DataLoader(data, batch_size=args.batch, sampler=sampler, drop_last=True)
for epoch in range(args.epochs):
    sampler.set_epoch(epoch)
    for x, y in loader:
        losses = []
        pipeline.step(x) if first else pipeline.step(target=y, losses=losses)
        opt.step()
        opt.zero_grad()
        if losses:
            trib.log(loss=torch.stack(losses).mean())
