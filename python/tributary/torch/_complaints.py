"""What users are told: messages that name the thing and the cure, and the checks that need nothing else."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

LAYOUT_IS_FIXED = (
    "{what}, but the tensors of a job are fixed: make the DistributedOptimizer after all parameters are in its groups "
    "and unfrozen, or begin another job"
)


SHARED_STEPS_HERE = (
    "parameters='shared': this optimizer steps on the trainers, which write the parameters: leave it out, or take one "
    "that steps on the servers (SGD, Adam, AdamW, Adagrad, Lion)"
)


def one_of(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}={value!r}: must be {' or '.join(repr(word) for word in allowed)}")


def _in_reentrant_checkpoint() -> bool:
    """Whether this backward pass was begun by torch.utils.checkpoint in the middle of another one."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "backward" and code.co_filename.replace("\\", "/").endswith("torch/utils/checkpoint.py"):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def gradient_came_twice(name: str, round: int) -> str:
    """A hook came for a gradient that had been sent."""
    begin = f"the gradient of '{name}' came twice in round {round}, and was sent after the first time: "
    if _in_reentrant_checkpoint():
        return begin + (
            "the parameter is used in several parts of torch.utils.checkpoint with use_reentrant=True, each of which "
            "has a backward pass of its own. Pass use_reentrant=False, or overlap='step' to DistributedOptimizer"
        )
    return begin + (
        "there were two backward passes without step() between them. To add their gradients, pass accumulate=, or run "
        "all but the last inside no_sync(). (A loop that leaves out step() after backward, as torch.amp.GradScaler "
        "does after an overflow, needs tributary.torch.GradScaler; torch.utils.checkpoint needs use_reentrant=False.)"
    )


TORCHS_SCALER = (
    "step() is called by torch.amp.GradScaler, which unscales gradients in place after they were sent, and lets every "
    "rank decide by itself whether to step: use tributary.torch.GradScaler, and pass loss_scale='dynamic' to "
    "DistributedOptimizer"
)


def called_by_torchs_scaler() -> bool:
    """Whether torch's GradScaler calls step(). Its kernels write gradients without raising their versions."""
    frame = sys._getframe(2)
    for _ in range(6):
        if frame is None:
            break
        if frame.f_code.co_filename.replace("\\", "/").endswith("torch/amp/grad_scaler.py"):
            return bool(getattr(frame.f_locals.get("self"), "_enabled", True))
        frame = frame.f_back  # type: ignore[assignment]
    return False


def gradient_changed(name: str, round: int) -> str:
    return (
        f"the gradient of '{name}' was changed after it was sent in round {round} (clip_grad_norm_, "
        "torch.amp.GradScaler.unscale_, or your own code), so the servers have another one. To clip, pass "
        "max_grad_norm= to DistributedOptimizer; for a loss scale use tributary.torch.GradScaler; for anything else "
        "pass overlap='step', which sends gradients in step()"
    )


def parameter_written(name: str) -> str:
    return (
        f"parameter '{name}' was written in place since the last step (load_state_dict, a clamp, Embedding(max_norm=), "
        "...), and the servers' value would replace it. Load weights before the DistributedOptimizer is made; bound "
        "weights in forward; or pass step_on='trainers', and do the same on every rank"
    )


def rate_changed(group: int, before: float, now: float) -> str:
    return (
        f"the learning rate of group {group} changed from {before!r} to {now!r} between backward and step(), when "
        "gradients had left with the first one: step schedulers after opt.step()"
    )


def mean_cannot_resume(name: str, round: int) -> str:
    return (
        f"job '{name}' is at round {round}, but its optimizer steps on the trainers: the servers have no parameters to "
        "go on with. Load your own checkpoint and begin another job (name=...)"
    )


def hyper_parameters(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The values of groups that the servers were told: all but rates, and what no formula has."""
    keys = ("momentum", "dampening", "nesterov", "weight_decay", "betas", "eps", "lr_decay", "amsgrad", "maximize")
    return [{key: _plain(group[key]) for key in keys if key in group} for group in groups]


def check_hyper_parameters(groups: list[dict[str, Any]], fixed: list[dict[str, Any]]) -> None:
    """Raises if a value that the servers were told is another one now."""
    for number, (group, values) in enumerate(zip(groups, fixed)):
        for key, value in values.items():
            if _plain(group[key]) != value:
                raise RuntimeError(
                    f"{key} of group {number} was {value!r} when the job began and is {group[key]!r} now, but only "
                    "rates can change while the servers step: leave it (OneCycleLR and CyclicLR: "
                    "cycle_momentum=False), or pass step_on='trainers'"
                )


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return float(value)
    if isinstance(value, (tuple, list)):
        return tuple(_plain(item) for item in value)
    return value
