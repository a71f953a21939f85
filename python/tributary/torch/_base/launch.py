"""How this process was launched, and how long it waits for the others."""

from __future__ import annotations

import os

ATTACH_TIMEOUT_S = 120
MAX_ATTACH_TIMEOUT_S = 7 * 24 * 3600

_TOPOLOGY = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")

NOT_LAUNCHED = (
    "no launcher has said what rank this is, so it takes itself for the only one: a program that starts its ranks "
    "itself (mp.spawn) calls tributary.torch.init(rank=, world_size=) in each of them first"
)


def say_topology(rank: int, world_size: int, local_world_size: int | None) -> None:
    """As a launcher does, in the environment: processes that load data have it from there, too.

    Raises:
        ValueError: there are no such ranks, or a launcher has said something else.
    """
    per_node = int(_said("LOCAL_WORLD_SIZE") or world_size) if local_world_size is None else local_world_size
    given = f"init(rank={rank}, world_size={world_size}, local_world_size={per_node})"
    if not 0 <= rank < world_size:
        raise ValueError(f"{given}: ranks count from 0, and are below world_size")
    if not 1 <= per_node <= world_size or world_size % per_node:
        raise ValueError(f"{given}: every node has the same number of ranks, so that world_size is a multiple of it")
    values = (rank, world_size, rank % per_node, per_node, rank // per_node)
    for name, value in zip(_TOPOLOGY, values):
        if (said := _said(name)) and said != str(value):
            raise ValueError(
                f"{given} means {name}={value}, and {name}={said} is in the environment: leave init() out where a "
                f"launcher says the ranks (torchrun, tributary run), or unset {name}"
            )
    os.environ.update({name: str(value) for name, value in zip(_TOPOLOGY, values)})


def _said(name: str) -> str | None:
    return os.environ.get(f"TRIBUTARY_{name}") or os.environ.get(name)


def topology_of_environment() -> tuple[int, int, int, int, int] | None:
    """Returns None where a launcher has set the rank; a program without a launcher is the only rank."""
    if any(name in os.environ or f"TRIBUTARY_{name}" in os.environ for name in _TOPOLOGY):
        return None
    return (0, 1, 0, 1, 0)


def ranks_of_environment() -> int | None:
    """How many ranks the launcher has started; None: it has not said it."""
    text = _said("WORLD_SIZE")
    return int(text) if text is not None and text.isdecimal() else None


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
