"""A GPT over bytes, on machines that are far apart: each rank trains by itself for 50 steps, and only then they meet.
ddp/diloco.py exchanges gradients in every step.

tributary run --servers 1 --nodes 4 -- python examples/diloco.py
PYTHONPATH=examples torchrun --nproc-per-node 4 examples/ddp/diloco.py
"""

import torch
from byte_gpt import ByteGPT, arguments, datasets, validation_loss
from torch.nn import functional as F
from torch.utils.data import DataLoader
from tributary.torch import DiLoCo, DistributedSampler, log

args = arguments()
torch.set_num_threads(1)
data, held_out = datasets(args.text, args.bytes, args.context)
model = ByteGPT(context=args.context)
opt = torch.optim.AdamW(model.groups(), lr=1e-3)
with DiLoCo(model, opt, sync_every=50, outer={"lr": 0.7, "momentum": 0.9, "nesterov": True}):
    sampler = DistributedSampler(data, seed=1)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler, drop_last=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
            opt.step()
            opt.zero_grad()
            log(loss=loss)
print(f"validation loss {validation_loss(model, held_out):.4f}")
