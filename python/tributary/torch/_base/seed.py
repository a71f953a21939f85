"""Random generators: set for each round, or as they were when a state was kept."""

from __future__ import annotations

import hashlib
import random
import sys
from typing import Any

import torch


def seed_round(seed: int, rank: int, round: int) -> None:
    """Sets the generators of torch (all devices), Python and, if it is loaded, NumPy for a rank's next round."""
    digest = hashlib.blake2b(f"{seed}/{rank}/{round}".encode(), digest_size=8).digest()
    value = int.from_bytes(digest, "little") >> 1
    torch.manual_seed(value)
    random.seed(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(value & 0xFFFFFFFF)


def generators() -> dict[str, Any]:
    """How the same generators are now."""
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        state["numpy"] = numpy.random.get_state()
    return state


def set_generators(state: dict[str, Any]) -> None:
    """Sets them as :func:`generators` said. States of GPUs that are not here are left out."""
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    if "cuda" in state and torch.cuda.is_available():
        for device, one in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(one, device)
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in state:
        numpy.random.set_state(state["numpy"])
