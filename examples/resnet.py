"""ResNet-18 on Fashion-MNIST (Debian's package dataset-fashion-mnist).

tributary run --servers 1 --nodes 1 --ranks-per-node 2 -- python examples/resnet.py
"""

import argparse
import gzip
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from tributary.torch import DistributedOptimizer, DistributedSampler, log


class Block(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outside), nn.BatchNorm2d(outside)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


def resnet18(channels: int = 1, classes: int = 10) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(channels, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    for inside, outside, stride in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)):
        layers += [Block(inside, outside, stride), Block(outside, outside, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


def fashion_mnist(folder: str, part: str, size: int) -> TensorDataset:
    """The first `size` of "train" or "t10k": images (1, 28, 28), normalised, and labels."""

    def read(name: str, header: int) -> torch.Tensor:
        path = Path(folder) / f"{part}-{name}-ubyte"
        data = path.read_bytes() if path.exists() else gzip.decompress(Path(f"{path}.gz").read_bytes())
        return torch.frombuffer(bytearray(data), dtype=torch.uint8, offset=header)

    labels = read("labels-idx1", 8).long()
    images = (read("images-idx3", 16).view(-1, 1, 28, 28).float() / 255 - 0.2860) / 0.3530
    return TensorDataset(images[:size], labels[:size])


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset) -> float:
    model.eval()
    right = [(model(x).argmax(1) == y).float().mean() for x, y in DataLoader(data, batch_size=250)]
    model.train()
    return float(torch.stack(right).mean())


parser = argparse.ArgumentParser()
parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
parser.add_argument("--samples", type=int, default=60_000, help="to train with, at most")
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--batch", type=int, default=32, help="of a rank")
args = parser.parse_args()

torch.set_num_threads(1)
device = "cuda" if torch.cuda.is_available() else "cpu"
data = fashion_mnist(args.data, "train", args.samples)
model = resnet18().to(device, memory_format=torch.channels_last)
sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
opt = DistributedOptimizer(model, sgd)
loader = DataLoader(data, batch_size=args.batch, sampler=DistributedSampler(data, seed=1))
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, args.epochs * len(loader), cycle_momentum=False)
for epoch in range(args.epochs):
    for x, y in loader:
        outputs = model(x.to(device))
        loss = F.cross_entropy(outputs, y.to(device))
        loss.backward()
        opt.step()
        sched.step()
        opt.zero_grad()
        log(loss=loss, accuracy=(outputs.argmax(1).cpu() == y).float().mean())
    test = fashion_mnist(args.data, "t10k", args.samples)
    print(f"epoch {epoch}: test accuracy {accuracy(model.cpu(), test):.3f}")
    model.to(device)
