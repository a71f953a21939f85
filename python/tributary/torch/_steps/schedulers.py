"""Schedulers of a program: which there are, and their state."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from tributary.torch._base import plain
from tributary.torch._base.log import logger
from tributary.torch._steps import settings

try:
    from torch.optim.lr_scheduler import LRScheduler
except ImportError:  # torch < 2.0
    from torch.optim.lr_scheduler import _LRScheduler as LRScheduler  # type: ignore[assignment]

_made: list[weakref.ref[Any]] = []  # all of this program, in the order in which they were made


def _new(kind: type, *_: Any, **__: Any) -> Any:
    """Notes each new scheduler. Torch's own class has no __new__(), and keeps no list of schedulers."""
    scheduler: Any = object.__new__(kind)
    _made[:] = [known for known in _made if known() is not None]
    _made.append(weakref.ref(scheduler))
    return scheduler


LRScheduler.__new__ = _new  # type: ignore[assignment,method-assign]


def add(thing: Any) -> None:
    """Notes a thing that a program keeps: schedulers of other kinds (timm's) have the optimizer that they change."""
    if isinstance(getattr(thing, "optimizer", None), torch.optim.Optimizer) and not isinstance(thing, LRScheduler):
        _made.append(weakref.ref(thing))


class Schedulers:
    """Schedulers that change the values of an optimizer's groups.

    Args:
        optimizers: the wrapper and the one that it wraps: a scheduler may hold either.
    """

    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        self._optimizers = optimizers
        self._alive: list[Any] = []  # when the loop was looked at last: a function that made them may have returned
        self._began = self._values()  # what the program gave
        self._left_out: set[int] = set()
        self._told_of_unknown = False

    def _found(self) -> list[Any]:
        """In the order in which they were made, without those that another one steps."""
        mine = [scheduler for known in _made if (scheduler := known()) is not None and self._is_mine(scheduler)]
        inner = {id(part) for scheduler in mine for part in getattr(scheduler, "_schedulers", [])}
        return [scheduler for scheduler in mine if id(scheduler) not in inner]

    def _is_mine(self, scheduler: Any) -> bool:
        """Whether it steps the optimizer, or one that has the optimizer in it (Accelerate's)."""
        holder = getattr(scheduler, "optimizer", None)
        while holder is not None and not any(holder is optimizer for optimizer in self._optimizers):
            holder = getattr(holder, "optimizer", None)
        return holder is not None

    def find(self) -> None:
        """Takes the schedulers that there are now."""
        self._alive = self._found()
        if not self._alive and any("initial_lr" in group for group in self._optimizers[0].param_groups):
            self._tell_of_unknown()

    def _tell_of_unknown(self) -> None:
        if not self._told_of_unknown:
            logger.warning(
                "the optimizer's groups have an initial_lr, which a scheduler gives them, and no scheduler is known: a "
                "process that goes on would begin it anew. Give it to tributary.torch.keep(scheduler=...) before the "
                "loop"
            )
        self._told_of_unknown = True

    def state(self) -> dict[str, Any]:
        return {
            "began": self._began,
            "values": self._values(),
            "schedulers": [self._state_of(scheduler) for scheduler in self._alive],
        }

    def _values(self) -> list[settings.Values]:
        return settings.values_of(self._optimizers[0].param_groups)

    def _state_of(self, scheduler: Any) -> dict[str, Any]:
        name, data = type(scheduler).__name__, b""
        try:
            data = plain.encoded(scheduler.state_dict(), f"the state of {name}")
        except plain.NotPlain as error:
            if id(scheduler) not in self._left_out:
                self._left_out.add(id(scheduler))
                logger.warning("%s, which cannot be kept: in a process that goes on, %s begins anew", error, name)
        return {"name": name, "state": data}

    def load(self, state: dict[str, Any]) -> None:
        """Restores the schedulers' states."""
        found, given = self._found(), state["schedulers"]
        names = [type(scheduler).__name__ for scheduler in found]
        if names != [one["name"] for one in given]:
            logger.warning(
                "the program has %s, and had %s when the job's state was kept: they begin anew",
                _listed(names),
                _listed([str(one["name"]) for one in given]),
            )
            return
        if not found:
            return
        for scheduler, one in zip(found, given):
            if one["state"]:
                scheduler.load_state_dict(plain.decoded(one["state"]))
        if state["began"] != self._began:
            logger.warning(
                "the optimizer's groups have %s in the program, and had %s when the job began: its schedulers go on "
                "from those. For other values give another name=, or `tributary run --fresh`",
                self._began,
                state["began"],
            )
            self._began = state["began"]
        settings.give(self._optimizers[0].param_groups, state["values"])


def _listed(names: list[str]) -> str:
    return "the schedulers " + ", ".join(names) if names else "no scheduler"
