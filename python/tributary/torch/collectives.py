"""A loop's collectives over the job instead of a process group: small values, equal on all ranks, surviving losses."""

from __future__ import annotations

from typing import Any, Callable

import torch

from tributary.torch._run.program import program, rank

_REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mean": lambda values: values.mean(0),
    "sum": lambda values: values.sum(0),
    "max": lambda values: values.amax(0),
}


def is_main() -> bool:
    """Whether this is rank 0: of all ranks one prints, and saves."""
    return rank() == 0


def barrier() -> None:
    """Waits until all ranks of the job are here.

    Raises:
        Rewound, Stopped, tributary.Error, ValueError: as :func:`all_reduce`.
    """
    program.values.gather("barrier()", None)


def all_reduce(value: Any, op: str = "mean") -> Any:
    """The mean, sum or largest of all ranks' values, the same bits on each: floats are added in float64, by rank.

    A loop that decides by a value (early stopping, ``ReduceLROnPlateau``) needs the same one on all ranks. Call it on
    all ranks, as often on each. A process that continues gets the results of its iteration's calls.

    Args:
        value: a number, or a tensor of at most 64 KiB; of one shape and dtype on all ranks. It is not changed.
        op: ``"mean"``, ``"sum"`` or ``"max"``.

    Returns:
        A number for a number, a tensor on the same device for a tensor.

    Raises:
        Rewound: the job went back in this iteration, with ``on_rewind="raise"``.
        Stopped: the job stops.
        tributary.Error: there is no open job, or a rank has made other calls.
        ValueError: ranks differ in call, shape or dtype; a mean of whole numbers in a tensor; an unknown op.
    """
    if op not in _REDUCTIONS:
        raise ValueError(f"all_reduce(op={op!r}): the reductions are {', '.join(_REDUCTIONS)}")
    is_tensor = isinstance(value, torch.Tensor)
    mine = value.detach() if is_tensor else torch.tensor(value.item() if hasattr(value, "item") else value)
    is_float = mine.is_floating_point()
    if is_tensor and op == "mean" and not is_float:
        raise ValueError(f"all_reduce: no mean of {mine.dtype}: give it as floats")
    given = program.values.gather(f"all_reduce(op={op!r})", mine)
    for of, other in enumerate(given):
        if (other.shape, other.dtype) != (mine.shape, mine.dtype):
            raise ValueError(
                f"all_reduce: {mine.dtype} of shape {tuple(mine.shape)} on this rank, and {other.dtype} of shape "
                f"{tuple(other.shape)} on rank {of}: give the same on all"
            )
    wide = torch.float64 if is_float or op == "mean" else torch.int64
    result = _REDUCTIONS[op](torch.stack([one.to(wide) for one in given]))
    if is_tensor:
        return result.to(device=mine.device, dtype=mine.dtype)
    return result.item()


def broadcast(value: Any = None, source: int = 0) -> Any:
    """One rank's value, on all ranks.

    Args:
        value: of numbers, text, tensors, arrays and containers of them, 64 KiB; of ranks other than ``source`` it does
            not matter.
        source: the rank.

    Raises:
        TypeError: the value is of another kind.
        Rewound, Stopped, tributary.Error, ValueError: as :func:`all_reduce`.
    """
    given = program.values.gather(f"broadcast(source={source})", value if rank() == source else None)
    if len(given) == 1:
        return value  # this rank's alone
    if not 0 <= source < len(given):
        raise ValueError(f"broadcast(source={source}): the job has ranks 0 to {len(given) - 1}")
    return given[source]


def metric(name: str) -> float:
    """The mean over all ranks of a figure's values given to :func:`log` since the last call. ``samples=`` is a value's
    weight, by default 1. NaN: no rank has logged it.

    Raises:
        Rewound, Stopped, tributary.Error, ValueError: as :func:`all_reduce`.
    """
    return program.values.metric(name)
