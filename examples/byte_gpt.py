"""A GPT over bytes, and text for it: what gpt.py, diloco.py and their DDP twins train."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sysconfig
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--text", help="a file to learn from")
    parser.add_argument("--bytes", type=int, default=1 << 20, help="of it")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8, help="of a rank")
    parser.add_argument("--context", type=int, default=64)
    return parser.parse_args()


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, time, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, time, width))
        return x + self.mlp(self.norm2(x))


class ByteGPT(nn.Module):
    """Input and output of (batch, time) bytes as int64; logits of (batch, time, 256). Embedding and head are tied."""

    def __init__(self, layers: int = 4, width: int = 128, heads: int = 4, context: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.positions = nn.Parameter(0.02 * torch.randn(context, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.head.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.embedding(x) + self.positions[: x.shape[1]])))

    def groups(self) -> list[dict[str, object]]:
        return groups_of(self)


def groups_of(module: nn.Module, decay: float = 0.1) -> list[dict[str, object]]:
    """Matrices decay, vectors do not."""
    matrices = [p for p in module.parameters() if p.ndim >= 2]
    vectors = [p for p in module.parameters() if p.ndim < 2]
    return [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]


class Bytes(Dataset):
    """Pieces of a text, one after another: (context) bytes, and the bytes that follow each."""

    def __init__(self, text: bytes, context: int) -> None:
        self.text = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self.context = context

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.context

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        begin = index * self.context
        piece = self.text[begin : begin + self.context + 1].long()
        return piece[:-1], piece[1:]


def text(path: str | None = None) -> bytes:
    """A file's; else the King James Bible, if Debian's `bible` is installed; else Python's own library."""
    if path:
        return Path(path).read_bytes()
    if shutil.which("bible"):
        return subprocess.run(["bible", "-f", "gen1:1-rev22:21"], stdout=subprocess.PIPE, check=True).stdout
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return b"".join(file.read_bytes() for file in files)


def datasets(path: str | None, size: int, context: int) -> tuple[Bytes, Bytes]:
    """The text's first `size` bytes: for training, and their last twentieth for validation."""
    whole = text(path)[:size]
    cut = len(whole) // 20 * 19
    return Bytes(whole[:cut], context), Bytes(whole[cut:], context)


@torch.no_grad()
def validation_loss(model: nn.Module, data: Bytes, batches: int = 20, size: int = 32) -> float:
    pieces = torch.linspace(0, len(data) - 1, batches * size).long().view(batches, size).tolist()
    device = next(model.parameters()).device
    losses = []
    for piece in pieces:
        x, y = (torch.stack(side).to(device) for side in zip(*(data[i] for i in piece)))
        losses.append(F.cross_entropy(model(x).flatten(0, 1), y.flatten()))
    return float(torch.stack(losses).mean())
