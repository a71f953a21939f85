"""Messages to users, which name the thing and the cure, and the checks that need nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import torch

LAYOUT_IS_FIXED = (
    "{what}, but the tensors of a job are fixed: make the DistributedOptimizer after all parameters are in its groups "
    "and unfrozen. For what trains later make another DistributedOptimizer when it begins to train (`if epoch >= 3 and "
    "later is None`), or put it in a group with lr=0, whose rate the loop raises then"
)


SHARED_STEPS_HERE = (
    "parameters='shared': this optimizer steps on the trainers, which write the parameters: leave it out, or take one "
    "that steps on the servers (SGD, Adam, AdamW, Adagrad, Lion)"
)


# Where the mean over ranks can be changed.
CLIP_HERE = (
    "To clip by value, by group or by another norm, pass step_on='trainers', and clip in a function that "
    "register_step_pre_hook() of the torch optimizer has before it is wrapped: the gradients are the mean there"
)

CAPTURED = (
    "a CUDA graph is captured around backward(), and nothing would be sent when it is replayed: capture the model "
    "alone (torch.cuda.make_graphed_callables), and call backward() and step() outside of graphs"
)


def one_of(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}={value!r}: must be {' or '.join(repr(word) for word in allowed)}")


def gradient_came_twice(name: str, round: int, accumulate: int) -> str:
    """A hook came for a gradient that had been sent."""
    if accumulate > 1:
        return (
            f"the gradient of '{name}' came once more in round {round}, after it was sent in backward pass "
            f"{accumulate} (accumulate={accumulate}): call step() after every {accumulate} passes, and at the end of "
            "an epoch for those that are left; or pass overlap='step', which adds up any number of passes"
        )
    return (
        f"the gradient of '{name}' came twice in round {round}, and was sent after the first time: there were two "
        "backward passes without step() between them, or one that gives gradients in parts. For k passes a step pass "
        "accumulate=k, or run all but the last inside no_sync() (model.require_backward_grad_sync is for "
        "DistributedDataParallel alone). For a GAN, where the pass of one net leaves gradients "
        "in the other, pass overlap='step', which sends what p.grad has in step(). For SAM pass that and "
        "step_on='trainers', and give parameters their values back before step(). For torch.utils.checkpoint pass "
        "use_reentrant=False to it, or overlap='step' here"
    )


def short_round(round: int, passes: int, accumulate: int) -> str:
    return (
        f"step() of round {round} came after {passes} of {accumulate} backward passes (accumulate={accumulate}): what "
        "they gave is sent. That is right for what an epoch leaves over. Said once"
    )


TORCHS_SCALER = (
    "step() is called by torch.amp.GradScaler, which unscales gradients in place after they were sent, and lets every "
    "rank decide by itself whether to step: use tributary.torch.GradScaler, and pass loss_scale='dynamic' to "
    "DistributedOptimizer"
)


def no_scaled_loss(job: str, scale: str, round: int) -> str:
    return (
        f"job '{job}' has loss_scale={scale!r}, so the servers divide gradients by the scale, but no loss of round "
        f"{round} was multiplied by it: call tributary.torch.GradScaler().scale(loss).backward(), or leave loss_scale= "
        "out (bfloat16 needs none)"
    )


def gradient_rewritten(name: str, round: int) -> str:
    return (
        f"the gradient of '{name}' was written between backward and step() of round {round}: it is this rank's own, "
        "before the mean over ranks. DistributedDataParallel's clip_grad_norm_ clips the mean: to do so pass "
        "max_grad_norm= to DistributedOptimizer, and clip nowhere else (Trainer: max_grad_norm=0; Lightning: "
        f"gradient_clip_val=None). {CLIP_HERE}. Said once"
    )


def gradient_changed(name: str, round: int) -> str:
    return (
        f"the gradient of '{name}' was changed after it was sent in round {round} (clip_grad_norm_, "
        "torch.amp.GradScaler.unscale_, model.zero_grad(set_to_none=False), a write through .data, or your own code), "
        "so the servers have another one. To clip, pass max_grad_norm= to DistributedOptimizer. "
        f"{CLIP_HERE}. For a loss scale use tributary.torch.GradScaler; zero gradients after step(); for anything else "
        "pass overlap='step', which sends this rank's own gradients in step()"
    )


def parameter_written(name: str) -> str:
    return (
        f"parameter '{name}' was written in place since the last step (load_state_dict, a clamp, also through .data, "
        "Embedding(max_norm=), ...), and the servers' value would replace it. Load weights before the "
        "DistributedOptimizer is made; bound weights in forward; or pass step_on='trainers', and do the same on every "
        "rank"
    )


def settings_changed(group: int, before: object, now: object) -> str:
    return (
        f"the values of group {group} changed from {before} to {now} between backward and step(), when gradients had "
        "left with the first ones: step schedulers after opt.step()"
    )


def hooks_of_steps(optimizer: torch.optim.Optimizer) -> int:
    """How many functions of the program its step() calls."""
    kinds = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    return sum(len(getattr(optimizer, kind, ())) for kind in kinds)


def hooks_without_steps(optimizer: torch.optim.Optimizer) -> str:
    return (
        f"the {type(optimizer).__name__} has hooks (register_step_pre_hook, register_step_post_hook), and it makes no "
        "steps while the servers do: pass step_on='trainers', or register them at the DistributedOptimizer"
    )


def hooks_came_late(optimizer: torch.optim.Optimizer) -> str:
    return (
        f"the {type(optimizer).__name__} got a hook (register_step_pre_hook, register_step_post_hook) after it was "
        "wrapped: register it before the DistributedOptimizer is made, which makes the open step in a process that "
        "goes on"
    )


def mean_cannot_resume(name: str, round: int) -> str:
    return (
        f"job '{name}' is at round {round}, but its optimizer steps on the trainers: the servers have no parameters to "
        "go on with. Load your own checkpoint and begin another job (name=...)"
    )


def state_is_elsewhere(name: str) -> str:
    return (
        f"state_dict(): the servers of job '{name}' have the optimizer's state, and this dict has none, so that an "
        "optimizer which loads it begins anew. The job itself goes on where it was. To train on without it, take "
        "tributary.torch.save_checkpoint() and full_state_dict(); or pass step_on='trainers'. Said once"
    )
