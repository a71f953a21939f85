"""ResNet-18, and Fashion-MNIST (Debian's package dataset-fashion-mnist): what resnet.py and its DDP twin train."""

from __future__ import annotations

import argparse
import gzip
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--samples", type=int, default=60_000, help="to train with, at most")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=32, help="of a rank")
    return parser.parse_args()


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
def accuracy(model: nn.Module, data: TensorDataset, device: torch.device) -> float:
    model.eval()
    right = [(model(x.to(device)).argmax(1).cpu() == y).float().mean() for x, y in DataLoader(data, batch_size=250)]
    model.train()
    return float(torch.stack(right).mean())
