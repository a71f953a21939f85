"""How this process was launched, and how long it waits for the others."""

from __future__ import annotations

import os

ATTACH_TIMEOUT_S = 120
MAX_ATTACH_TIMEOUT_S = 7 * 24 * 3600

_TOPOLOGY = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")


def topology_of_environment() -> tuple[int, int, int, int, int] | None:
    """None where a launcher has said what rank this is; a program that nobody launched is the only rank."""
    if any(name in os.environ or f"TRIBUTARY_{name}" in os.environ for name in _TOPOLOGY):
        return None
    return (0, 1, 0, 1, 0)


def ranks_of_environment() -> int | None:
    """How many ranks the launcher has started; None: it has not said it."""
    text = os.environ.get("TRIBUTARY_WORLD_SIZE") or os.environ.get("WORLD_SIZE") or ""
    return int(text) if text.isdecimal() else None


def attach_timeout_ms(attach_timeout: float | None) -> int:
    """None: 0, which is what the environment says."""
    if attach_timeout is None:
        return 0
    if not 0 < attach_timeout <= MAX_ATTACH_TIMEOUT_S:
        raise ValueError(
            f"attach_timeout={attach_timeout}: give seconds, more than 0 and at most {MAX_ATTACH_TIMEOUT_S}"
        )
    return max(1, round(attach_timeout * 1000))


def attach_patience_s(timeout_ms: int) -> float:
    """How long the first attach may take in all: as the argument says, else the environment, else two minutes."""
    if timeout_ms:
        return timeout_ms / 1000
    try:
        return float(os.environ.get("TRIBUTARY_ATTACH_TIMEOUT") or ATTACH_TIMEOUT_S)
    except ValueError:  # the library says what is wrong with it
        return 0.0
