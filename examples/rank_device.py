"""Where a rank computes."""

from __future__ import annotations

import os

import torch


def rank_device() -> torch.device:
    """A GPU of the rank's own, as far as there are enough; else the CPU.

    `tributary run` and torchrun say which rank of its machine it is.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    rank = os.environ.get("TRIBUTARY_LOCAL_RANK") or os.environ.get("LOCAL_RANK") or "0"
    device = torch.device("cuda", int(rank) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device
