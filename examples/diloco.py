"""DiLoCo: every rank trains by itself for 50 steps, and only then they meet. For machines that are far apart.

tributary run --servers 1 --nodes 4 -- python examples/diloco.py
"""

import argparse

import torch
import tributary.torch as trib
from byte_gpt import ByteGPT, datasets, validation_loss
from torch.nn import functional as F
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--text", help="a file to learn from")
parser.add_argument("--bytes", type=int, default=1 << 20, help="of it")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch", type=int, default=8, help="of a rank")
parser.add_argument("--context", type=int, default=64)
args = parser.parse_args()

torch.set_num_threads(1)
data, held_out = datasets(args.text, args.bytes, args.context)
model = ByteGPT(context=args.context)
inner = torch.optim.AdamW(model.groups(), lr=1e-3)
with trib.DiLoCo(model, inner, sync_every=50, outer={"lr": 0.7, "momentum": 0.9, "nesterov": True}):
    sampler = trib.DistributedSampler(data, seed=1)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler, drop_last=True)
    for epoch in range(args.epochs):
        for x, y in loader:
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
            inner.step()
            inner.zero_grad()
            trib.log(loss=loss)
print(f"rank {trib.rank()}: validation loss {validation_loss(model, held_out):.4f}")
