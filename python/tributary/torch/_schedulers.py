"""Learning-rate schedulers of a program that goes on in the middle of its job: they follow the round."""

from __future__ import annotations

import copy
import gc
import warnings
from typing import Any, Callable

import torch

from tributary.torch._log import logger

try:
    from torch.optim.lr_scheduler import LRScheduler
except ImportError:  # torch < 2.0
    from torch.optim.lr_scheduler import _LRScheduler as LRScheduler  # type: ignore[assignment]


def schedulers_of(optimizer: torch.optim.Optimizer) -> list[Any]:
    """The schedulers that hold an optimizer, without those that another one steps."""
    found = [
        thing
        for thing in gc.get_objects()
        if issubclass(type(thing), LRScheduler) and getattr(thing, "optimizer", None) is optimizer
    ]
    inner = {id(part) for thing in found for part in getattr(thing, "_schedulers", [])}
    return [thing for thing in found if id(thing) not in inner]


class Schedulers:
    """Steps an optimizer's schedulers to where a job's round is, when that is not where they are.

    Args:
        optimizer: that the schedulers hold.
        steps: how often a scheduler was stepped after so many rounds.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, steps: Callable[[int], int]) -> None:
        self._optimizer = optimizer
        self._steps = steps
        # With each: its state and the groups' rates when it had made no step.
        self._found: list[tuple[Any, dict[str, Any]]] = []
        self._rates: list[dict[str, Any]] = []
        self._looked = False

    def begin(self, round: int) -> None:
        """At the first gradient after an attach that went on at ``round``."""
        if not self._looked:
            self._looked = True
            for scheduler in schedulers_of(self._optimizer):
                if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                    if round:
                        logger.warning(
                            "%s follows what the loop measures, which is not known of the rounds before %d: load its "
                            "state_dict()",
                            type(scheduler).__name__,
                            round,
                        )
                elif scheduler.last_epoch == 0:
                    self._found.append((scheduler, copy.deepcopy(_state(scheduler))))
            self._rates = [
                {key: _value(group[key]) for key in ("lr", "initial_lr", "momentum", "betas") if key in group}
                for group in self._optimizer.param_groups
            ]
            if round == 0:
                return
        self._step_to(round)

    def _step_to(self, round: int) -> None:
        if not self._found:
            return
        steps = self._steps(round)
        for group, rates in zip(self._optimizer.param_groups, self._rates):
            for key, value in rates.items():
                if isinstance(group[key], torch.Tensor):
                    group[key].fill_(value)
                else:
                    group[key] = value
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the optimizer has made no step: it has, in another process
            for scheduler, state in self._found:
                scheduler.load_state_dict(copy.deepcopy(state))
                for _ in range(steps):
                    scheduler.step()
        names = ", ".join(type(scheduler).__name__ for scheduler, _ in self._found)
        logger.info("%s: stepped %d times, as after round %d", names, steps, round)


def _state(scheduler: Any) -> dict[str, Any]:
    return dict(scheduler.state_dict())


def _value(value: Any) -> Any:
    return float(value) if isinstance(value, torch.Tensor) else copy.copy(value)
