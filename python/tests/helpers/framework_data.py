"""A small task, and a model of it, that all frameworks train: what ``test_frameworks.py`` runs.

The model has dropout, so that a rank's random numbers count; ``SEED`` is that of the data's order.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

SAMPLES = 280  # with batches of 8 on two ranks an epoch has 17 batches a rank, so that its last step has one
BATCH, EPOCHS, ACCUMULATE, CLIP, RATE, SEED = 8, 3, 2, 1.0, 0.02, 5


class Samples(Dataset):
    """As dicts, which a Trainer wants."""

    def __init__(self, count: int = SAMPLES, seed: int = 7) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x = 2 * torch.randn(count, 20, generator=generator)
        self.y = (self.x @ torch.randn(20, 5, generator=torch.Generator().manual_seed(8))).argmax(1)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[index], "labels": self.y[index]}


class Net(nn.Module):
    """Its loss is the mean over a batch."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.body = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Dropout(0.1), nn.LayerNorm(32), nn.Linear(32, 5))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.body(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}
