"""Values of an optimizer's groups that schedules change. Where servers step, they are said with each round."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from tributary._library import CONFIGURED

Groups = list[dict[str, Any]]
Values = dict[str, Any]  # of a group, by key

# Settings that torch's schedulers and loops change. A momentum schedule changes betas[0] where a group has betas.
_SCHEDULED = ("lr", "weight_decay", "momentum", "betas")
_FIXED = ("dampening", "nesterov", "eps", "lr_decay", "amsgrad", "maximize")


class Settings(NamedTuple):
    """Settings of a group's step on the servers. ``CONFIGURED``: as the job has it."""

    lr: float
    weight_decay: float = CONFIGURED
    momentum: float = CONFIGURED


def values_of(groups: Groups, keys: tuple[str, ...] = _SCHEDULED) -> list[Values]:
    """Each group's values, as plain numbers."""
    return [{key: _plain(group[key]) for key in keys if key in group} for group in groups]


def all_values_of(groups: Groups) -> list[Values]:
    """With those that no schedule changes."""
    return values_of(groups, _SCHEDULED + _FIXED)


def give(groups: Groups, values: list[Values]) -> None:
    """Gives groups the values, into their tensors where they have some."""
    for group, one in zip(groups, values):
        for key, value in one.items():
            if isinstance(group[key], torch.Tensor):
                group[key].fill_(value)
            else:
                group[key] = tuple(value) if isinstance(value, (list, tuple)) else value


@contextlib.contextmanager
def given(groups: Groups, values: list[Values] | None) -> Iterator[None]:
    """Groups have these values inside; None: their own."""
    now = values_of(groups)
    give(groups, values or now)
    try:
        yield
    finally:
        give(groups, now)


def said_of(number: int, group: dict[str, Any], began: Values, scheduled: bool) -> Settings:
    """Settings of a group's step, as servers get them.

    Args:
        number: of the group, for messages.
        began: its values when the job began, which the servers have: all_values_of().
        scheduled: the job's own [schedule] says rates.

    Raises:
        RuntimeError: a value is another one that the servers cannot take in a step.
    """
    # Once for each gradient: most values are the very objects that they were.
    others = {key: group[key] for key, value in began.items() if group[key] is not value and key != "lr"}
    changed = {key: _plain(value) for key, value in others.items() if _plain(value) != began[key]}
    momentum = changed.pop("momentum", CONFIGURED)
    if "betas" in changed and changed["betas"][1:] == began["betas"][1:]:
        momentum = changed.pop("betas")[0]
    elif momentum != CONFIGURED and not (momentum and began["momentum"]):
        changed["momentum"] = momentum
    weight_decay = changed.pop("weight_decay", CONFIGURED)
    for key, value in changed.items():
        raise RuntimeError(
            f"{key} of group {number} was {began[key]!r} when the job began and is {value!r} now: while the servers "
            "step, only rates, weight_decay, momentum (not from 0, nor to 0) and the first of betas can change. Leave "
            "it, or pass step_on='trainers'"
        )
    return Settings(CONFIGURED if scheduled else float(_plain(group["lr"])), float(weight_decay), float(momentum))


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return float(value)
    if isinstance(value, (tuple, list)):
        return tuple(_plain(item) for item in value)
    return value
