"""The optimizer's state in torch's layout: what this process has of it, and what servers wrote into a checkpoint."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import torch

from tributary import _tool
from tributary.torch._base.log import listed
from tributary.torch._model import declare
from tributary.torch._model.slots import as_slice, is_split, slice_of
from tributary.torch._steps.formula import KINDS


def load(wrapped: torch.optim.Optimizer, groups: list[dict[str, Any]], given: dict[str, Any]) -> None:
    """Loads a state into an optimizer, and keeps its groups the dicts that schedulers know."""
    wrapped.load_state_dict(given)
    for group, new in zip(groups, wrapped.param_groups):
        group.update({key: value for key, value in new.items() if key != "params"})
    wrapped.param_groups = groups


def load_arrays(wrapped: torch.optim.Optimizer, arrays: dict[int, dict[str, Any]]) -> None:
    """Loads what an optimizer has of its parameters (``state_dict()["state"]``); its groups stay as they are."""
    load(wrapped, wrapped.param_groups, {"state": arrays, "param_groups": wrapped.state_dict()["param_groups"]})


def full_state_dict(
    model_or_params: declare.Parameters, optimizer: torch.optim.Optimizer, exported: str | os.PathLike[str]
) -> dict[str, Any]:
    """The state of an optimizer that stepped on the servers, as torch's own would have it.

    A checkpoint has the state (:func:`tributary.torch.save_checkpoint`). ``tributary checkpoint export CHECKPOINT FILE
    --optimizer`` writes the state into a file, next to the parameters (``safetensors.torch.load_file``). Needs no
    daemon, so that a model can be trained on without any:
    ``optimizer.load_state_dict(full_state_dict(model, optimizer, FILE))``.

    Args:
        model_or_params: as :class:`tributary.torch.DistributedOptimizer` was given it.
        optimizer: torch's, over those parameters, with the same groups.
        exported: the file, in the safetensors format; or a checkpoint's folder.

    Raises:
        ImportError: the package ``safetensors`` is not installed.
        tributary.Error: the checkpoint cannot be exported.
        ValueError: the file lacks a parameter, or the optimizer's state; or ranks hold the model together.
    """
    slots = declare.slots_of(model_or_params, optimizer, say=False)
    if split := [slot.name for slot in slots if slot.is_split]:
        raise ValueError(
            f"{listed(split)}: DTensors, of which only a job knows the slices: call the DistributedOptimizer's "
            "full_state_dict()"
        )
    return of_file({slot.name: slot.parameter for slot in slots}, optimizer, exported)


@torch.no_grad()
def of_file(
    parameters: dict[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer, exported: str | os.PathLike[str]
) -> dict[str, Any]:
    """:func:`full_state_dict` of parameters by the names that the job's tensors have."""
    if os.path.isdir(exported):
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "state.safetensors")
            _tool.answer(["checkpoint", "export", os.fspath(exported), file, "--optimizer", "--json"])
            return of_file(parameters, optimizer, file)
    try:
        from safetensors import safe_open
    except ImportError as error:
        raise ImportError("reading an exported checkpoint needs the package safetensors: install it") from error
    optimizer = getattr(optimizer, "wrapped", optimizer)  # a DistributedOptimizer's
    kind = KINDS.get(type(optimizer))
    if kind is None:
        raise ValueError(f"{type(optimizer).__name__} does not step on the servers, which have no state of it")
    wanted = kind.states_of(optimizer)
    place = {id(p): i for i, p in enumerate(p for group in optimizer.param_groups for p in group["params"])}
    state: dict[int, dict[str, Any]] = {}
    with safe_open(os.fspath(exported), framework="pt") as file:
        names = set(file.keys())
        step = (file.metadata() or {}).get("tributary.step")
        if step is None:
            raise ValueError(f"{os.fspath(exported)}: no export of a checkpoint (tributary checkpoint export)")
        missing = [name for name in parameters if name not in names]
        if missing:
            raise ValueError(f"{os.fspath(exported)}: has no {listed(missing)}: it is another model's")
        for name, parameter in parameters.items():
            shape = slice_of(parameter).shape
            arrays: dict[str, Any] = {}
            for key in wanted:
                if f"{name}.{key}" not in names:
                    raise ValueError(
                        f"{os.fspath(exported)}: has no {name}.{key}: "
                        "export the checkpoint of a job with this optimizer, with --optimizer"
                    )
                array = file.get_tensor(f"{name}.{key}")
                if array.shape != shape:
                    raise ValueError(
                        f"{os.fspath(exported)}: {name}.{key} has shape {tuple(array.shape)}, and the parameter "
                        f"{tuple(shape)}: it is another model's"
                    )
                arrays[key] = as_slice(array, parameter) if is_split(parameter) else array
            if kind.counts:
                arrays["step"] = torch.tensor(float(step))
            if arrays:
                state[place[id(parameter)]] = arrays
    return {"state": state, "param_groups": optimizer.state_dict()["param_groups"]}
