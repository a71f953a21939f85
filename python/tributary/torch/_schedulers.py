"""Learning-rate schedulers of a program: which there are, and their state."""

from __future__ import annotations

import warnings
import weakref
from typing import Any

import torch

from tributary.torch import _plain
from tributary.torch._log import logger

try:
    from torch.optim.lr_scheduler import LRScheduler
except ImportError:  # torch < 2.0
    from torch.optim.lr_scheduler import _LRScheduler as LRScheduler  # type: ignore[assignment]

_made: list[weakref.ref[Any]] = []  # all of this program, in the order in which they were made


def _new(kind: type, *_: Any, **__: Any) -> Any:
    """Torch's own class has no __new__(); it tells nobody else of a scheduler."""
    scheduler: Any = object.__new__(kind)
    _made[:] = [known for known in _made if known() is not None]
    _made.append(weakref.ref(scheduler))
    return scheduler


LRScheduler.__new__ = _new  # type: ignore[assignment,method-assign]


class Schedulers:
    """Schedulers that step the rates of an optimizer.

    Args:
        optimizers: the wrapper and the one that it wraps: a scheduler may hold either.
    """

    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        self._optimizers = optimizers
        self._alive: list[Any] = []  # when the last round left: a function that made them may have returned
        self._before: list[Any] = []  # their last_epoch then
        self._a_gap: dict[int, int] = {}  # how often each was stepped between a step() and the next round
        self._left_out: set[int] = set()

    def _found(self) -> list[Any]:
        """In the order in which they were made, without those that another one steps."""
        mine = [
            scheduler
            for known in _made
            if (scheduler := known()) is not None
            and any(getattr(scheduler, "optimizer", None) is optimizer for optimizer in self._optimizers)
        ]
        inner = {id(part) for scheduler in mine for part in getattr(scheduler, "_schedulers", [])}
        return [scheduler for scheduler in mine if id(scheduler) not in inner]

    def round_leaves(self) -> None:
        """A round's first gradient is about to be sent: later steps of schedulers belong to the gap after the round."""
        self._alive = self._found()
        self._before = [getattr(scheduler, "last_epoch", None) for scheduler in self._alive]

    def next_round_begins(self) -> None:
        """The gap is over, and no epoch ended in it."""
        for scheduler, before in zip(self._alive, self._before):
            now = getattr(scheduler, "last_epoch", None)
            if isinstance(before, int) and isinstance(now, int):
                self._a_gap[id(scheduler)] = max(0, now - before)

    def state(self) -> dict[str, Any]:
        return {
            "rates": [float(group["lr"]) for group in self._optimizers[0].param_groups],
            "schedulers": [self._state_of(scheduler, before) for scheduler, before in zip(self._alive, self._before)],
        }

    def _state_of(self, scheduler: Any, before: Any) -> dict[str, Any]:
        name, data = type(scheduler).__name__, b""
        try:
            data = _plain.encoded(scheduler.state_dict(), f"the state of {name}")
        except _plain.NotPlain as error:
            if id(scheduler) not in self._left_out:
                self._left_out.add(id(scheduler))
                logger.warning("%s, which cannot be kept: in a process that goes on, %s begins anew", error, name)
        now = getattr(scheduler, "last_epoch", None)
        done = now - before if isinstance(now, int) and isinstance(before, int) else 0
        return {"name": name, "state": data, "gap": self._a_gap.get(id(scheduler)), "done": done}

    def load(self, state: dict[str, Any], in_gap: bool) -> None:
        """Goes on as they were.

        Args:
            in_gap: the state is of the end of a step(), and the loop was lost before it came to the next batch: what it
                does between them it has not done.
        """
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
                scheduler.load_state_dict(_plain.decoded(one["state"]))
            if one["gap"] is not None:
                self._a_gap[id(scheduler)] = one["gap"]
        for group, rate in zip(self._optimizers[0].param_groups, state["rates"]):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        if in_gap:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that the optimizer has made no step: it has, in another process
                self._step_gap(list(zip(found, given)))

    @staticmethod
    def _step_gap(states: list[tuple[Any, dict[str, Any]]]) -> None:
        """Steps them as often as in the gap before, in turns: schedulers may follow each other's rates."""
        unknown = [one["name"] for _, one in states if one["gap"] is None]
        if unknown:
            logger.warning(
                "the loop was lost after its first round, before it was seen whether it steps %s after each: taken as "
                "not stepped",
                ", ".join(unknown),
            )
        left = [max(0, (one["gap"] or 0) - one["done"]) for _, one in states]
        for turn in range(max(left)):
            for (scheduler, _), steps in zip(states, left):
                judges = isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)  # what the loop measures
                if turn < steps and not judges:
                    scheduler.step()


def _listed(names: list[str]) -> str:
    return "the schedulers " + ", ".join(names) if names else "no scheduler"
