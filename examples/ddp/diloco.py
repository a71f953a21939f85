"""A GPT over bytes, on machines that are far apart: each rank trains by itself for 50 steps, and only then they meet.
ddp/diloco.py exchanges gradients in every step.

tributary run --servers 1 --nodes 4 -- python examples/diloco.py
PYTHONPATH=examples torchrun --nproc-per-node 4 examples/ddp/diloco.py
"""

import torch
import torch.distributed as dist
from byte_gpt import ByteGPT, arguments, datasets, validation_loss
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

args = arguments()
dist.init_process_group("gloo")
torch.set_num_threads(1)
data, held_out = datasets(args.text, args.bytes, args.context)
model = ByteGPT(context=args.context)
opt = torch.optim.AdamW(model.groups(), lr=1e-3)
model = DistributedDataParallel(model)
sampler = DistributedSampler(data, seed=1)
loader = DataLoader(data, batch_size=args.batch, sampler=sampler, drop_last=True)
for epoch in range(args.epochs):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        opt.step()
        opt.zero_grad()
        if dist.get_rank() == 0:
            print(f"loss {loss:.3f}")
print(f"validation loss {validation_loss(model, held_out):.4f}")
dist.destroy_process_group()
