"""A GPT over bytes: gpt.py, and ddp/gpt.py with DistributedDataParallel.

tributary run --servers 2 --nodes 2 --ranks-per-node 2 -- python examples/gpt.py
PYTHONPATH=examples torchrun --nproc-per-node 4 examples/ddp/gpt.py
"""

import tributary.torch as trib  # before torch: where that is missing, this says how it is installed

# isort: split
import torch
from byte_gpt import ByteGPT, arguments, datasets, validation_loss
from rank_device import rank_device
from torch.nn import functional as F
from torch.utils.data import DataLoader

args = arguments()
torch.set_num_threads(1)
device = rank_device()
data, held_out = datasets(args.text, args.bytes, args.context)
model = ByteGPT(context=args.context).to(device)
opt = trib.DistributedOptimizer(model, torch.optim.AdamW(model.groups(), lr=1e-3), max_grad_norm=1.0)
sampler = trib.DistributedSampler(data, seed=1)
loader = DataLoader(data, batch_size=args.batch, sampler=sampler, drop_last=True)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.epochs * len(loader))
for epoch in range(args.epochs):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = F.cross_entropy(model(x.to(device)).flatten(0, 1), y.to(device).flatten())
        loss.backward()
        opt.step()
        sched.step()
        opt.zero_grad()
        trib.log(loss=loss)
    print(f"epoch {epoch}: validation loss {validation_loss(model, held_out):.4f}")
