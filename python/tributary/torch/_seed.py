"""Random generators as a function of the round."""

from __future__ import annotations

import hashlib
import random
import sys

import torch


def seed_round(seed: int, rank: int, round: int) -> None:
    """Sets the generators of torch (all devices), Python and, if it is loaded, NumPy anew, for a rank's next round."""
    digest = hashlib.blake2b(f"{seed}/{rank}/{round}".encode(), digest_size=8).digest()
    value = int.from_bytes(digest, "little") >> 1
    torch.manual_seed(value)
    random.seed(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(value & 0xFFFFFFFF)
