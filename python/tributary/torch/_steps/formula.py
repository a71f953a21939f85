"""Which of the servers' optimizers does what a torch optimizer does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Union

import torch

from tributary.torch.lion import Lion

MEAN = "mean"  # the servers answer with the mean gradient, and the trainer steps
MOST_GROUPS = 128  # of a job (common/base/layout.h)

Value = Union[str, bool, int, float]
Keys = dict[str, Value]


@dataclass(frozen=True)
class Formula:
    """An optimizer of a job.

    Attributes:
        name: of ``[optimizer]``; :data:`MEAN` if the trainer steps.
        groups: the keys of each of the torch optimizer's groups, without rates.
        why: the trainer steps.
    """

    name: str
    groups: list[Keys] = field(default_factory=list)
    why: str = ""


def _first_rate(group: dict[str, Any]) -> float:
    return float(group.get("initial_lr", group["lr"]))


def _sgd(group: dict[str, Any], defaults: dict[str, Any]) -> Keys:
    keys: Keys = {"weight_decay": float(group["weight_decay"]), "momentum": float(group["momentum"])}
    if keys["momentum"]:
        keys["dampening"] = float(group["dampening"])
        keys["nesterov"] = bool(group["nesterov"])
    return keys


def _adam(group: dict[str, Any], defaults: dict[str, Any]) -> Keys:
    beta1, beta2 = group["betas"]
    return {
        "weight_decay": float(group["weight_decay"]),
        "beta1": float(beta1),
        "beta2": float(beta2),
        "eps": float(group["eps"]),
    }


def _adagrad(group: dict[str, Any], defaults: dict[str, Any]) -> Keys:
    return {
        "weight_decay": float(group["weight_decay"]),
        "eps": float(group["eps"]),
        "lr_decay": float(group["lr_decay"]),
        # torch fills its sums when the optimizer is made, and does not look at the groups' values.
        "initial_accumulator": float(defaults["initial_accumulator_value"]),
    }


def _lion(group: dict[str, Any], defaults: dict[str, Any]) -> Keys:
    beta1, beta2 = group["betas"]
    return {"weight_decay": float(group["weight_decay"]), "beta1": float(beta1), "beta2": float(beta2)}


@dataclass(frozen=True)
class Kind:
    """A torch optimizer that the servers have.

    Attributes:
        name: of ``[optimizer]``; Adam and AdamW are each other's where ``decoupled_weight_decay`` says so.
        keys: of a group, from the group and the optimizer's defaults.
        states: torch's names of the arrays that the servers keep of a parameter, in their order (kernels/step: kState).
        counts: torch's state of a parameter has the number of steps, too.
    """

    name: str
    keys: Callable[[dict[str, Any], dict[str, Any]], Keys]
    states: tuple[str, ...]
    counts: bool = True

    def states_of(self, optimizer: torch.optim.Optimizer) -> tuple[str, ...]:
        """The states that there are: SGD without momentum has none."""
        return self.states if optimizer.param_groups[0].get("momentum", True) else ()


KINDS: dict[type, Kind] = {
    torch.optim.SGD: Kind("sgd", _sgd, ("momentum_buffer",), counts=False),
    torch.optim.Adam: Kind("adam", _adam, ("exp_avg", "exp_avg_sq")),
    torch.optim.AdamW: Kind("adamw", _adam, ("exp_avg", "exp_avg_sq")),
    torch.optim.Adagrad: Kind("adagrad", _adagrad, ("sum",)),
    Lion: Kind("lion", _lion, ("exp_avg",), counts=False),
}
# Flags of torch that the servers' formulas have not.
_FLAGS = ("amsgrad", "maximize", "differentiable")


def _unfit(name: str, groups: list[Keys]) -> str | None:
    """Why no formula of the servers' has these values; None: one has."""
    for key in ("momentum", "nesterov"):
        if len({bool(keys.get(key, False)) for keys in groups}) > 1:
            return f"{key} is on in one group and off in another"
    for number, keys in enumerate(groups):
        for key in ("beta1", "beta2", "momentum"):
            if not 0.0 <= float(keys.get(key, 0.0)) < 1.0:
                return f"{key}={keys[key]} of group {number} is not in [0, 1)"
        if float(keys["weight_decay"]) < 0.0:
            return f"weight_decay={keys['weight_decay']} of group {number} is below 0"
        if name != "lion" and float(keys.get("eps", 1.0)) <= 0.0:
            return f"eps={keys['eps']} of group {number} is not above 0"
    return None


def formula_of(optimizer: torch.optim.Optimizer, *, on_servers: bool = True) -> Formula:
    """The servers' formula for a torch optimizer.

    Args:
        optimizer: any; only torch's own classes and :class:`Lion` are known, because a subclass may do something else.
        on_servers: False: the trainer steps, whatever the optimizer is.

    Raises:
        ValueError: no job can do what the optimizer does.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            "LBFGS evaluates its closure several times a step, and a job has one mean gradient a round: take an "
            "optimizer that evaluates it once, or train in one process"
        )
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise ValueError(
            "SparseAdam takes sparse gradients only, and the mean over ranks is dense: take Adam or AdamW, which step "
            "on the servers"
        )
    kind = type(optimizer)
    if not on_servers:
        return Formula(MEAN, why="step_on='trainers'")
    if kind not in KINDS:
        return Formula(MEAN, why=f"the servers have no {kind.__name__}")
    name, keys_of = KINDS[kind].name, KINDS[kind].keys
    for number, group in enumerate(optimizer.param_groups):
        for flag in _FLAGS:
            if group.get(flag):
                return Formula(MEAN, why=f"the servers' {name} has no {flag}, which group {number} asks for")
    if name in ("adam", "adamw"):
        decoupled = {bool(group.get("decoupled_weight_decay", name == "adamw")) for group in optimizer.param_groups}
        if len(decoupled) > 1:
            return Formula(MEAN, why="decoupled_weight_decay differs between groups")
        name = "adamw" if decoupled.pop() else "adam"
    if len(optimizer.param_groups) > MOST_GROUPS:
        return Formula(MEAN, why=f"{len(optimizer.param_groups)} parameter groups are more than {MOST_GROUPS}")
    groups = [{"lr": _first_rate(g), **keys_of(g, optimizer.defaults)} for g in optimizer.param_groups]
    why = _unfit(name, groups)
    return Formula(MEAN, why=why) if why else Formula(name, groups)


def has_steps(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer has already made steps, whose state the servers do not have."""
    return any("step" not in state or float(state["step"]) > 0 for state in optimizer.state.values())
