"""From a model and a torch optimizer to the tensors of a job."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Callable, Union

import torch

from tributary._library import Tensor
from tributary.torch._base.log import listed, logger
from tributary.torch._model.slots import SharedSlot, Slot, is_split, slice_of

Parameters = Union[torch.nn.Module, Iterable[torch.Tensor], Iterable[tuple[str, torch.Tensor]]]

_TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def names_of(model_or_params: Parameters) -> dict[int, str]:
    """The name of each parameter, by its id. Tied weights have the first of their names.

    Raises:
        TypeError: a model is wrapped by DistributedDataParallel.
        ValueError: two parameters have one name.
    """
    if isinstance(model_or_params, torch.nn.parallel.DistributedDataParallel):
        raise TypeError(
            "the model is wrapped by DistributedDataParallel, which would average gradients a second time: give the "
            "model itself, and remove DDP(model) and init_process_group()"
        )
    pairs: Iterable[Any]
    if isinstance(model_or_params, torch.nn.Module):
        pairs = model_or_params.named_parameters()
    else:
        pairs = ((f"parameter.{i}", item) if torch.is_tensor(item) else item for i, item in enumerate(model_or_params))
    full: dict[int, str] = {}
    for name, parameter in pairs:
        full.setdefault(id(parameter), name)
    plain = {key: _without_wrappers(name) for key, name in full.items()}
    names = plain if len(set(plain.values())) == len(plain) else full
    known: set[str] = set()
    for name in names.values():
        if name in known:
            raise ValueError(
                f"two parameters have the name '{name}', by which a job knows them: give names of their own, as in "
                "[*(('g.' + n, p) for n, p in g.named_parameters()), *(('d.' + n, p) for n, p in d.named_parameters())]"
            )
        known.add(name)
    return names


def _without_wrappers(name: str) -> str:
    """The job's names are the model's, without those of torch.compile and wrappers."""
    return name.replace("_orig_mod.", "").removeprefix("module.")


def slots_of(
    model_or_params: Parameters,
    optimizer: torch.optim.Optimizer,
    say: bool = True,
    share: bool = False,
    elsewhere: Collection[int] = (),
) -> list[Slot]:
    """The parameters that a job trains: those of the optimizer's groups that want a gradient, in the model's order.

    Args:
        say: for a job that is to begin: what is left out is said, and layers that it cannot have are refused.
        share: those that can are read where the worker writes them.
        elsewhere: ids of parameters that other jobs of the program train.

    Raises:
        ValueError: there is none, or an optimizer's parameter is not in the model.
        TypeError: a parameter is of a kind that no job has.
    """
    names = names_of(model_or_params)
    if say and isinstance(model_or_params, torch.nn.Module):
        _check_layers(model_or_params)
    slots: dict[int, Slot] = {}
    frozen: list[str] = []
    copied: list[str] = []
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            name = names.get(id(parameter))
            if name is None:
                raise ValueError(
                    f"a parameter of shape {tuple(parameter.shape)} in group {number} of the optimizer is not among "
                    "those of the model given first: give the model that the optimizer steps"
                )
            if not parameter.requires_grad:
                frozen.append(name)
                continue
            if id(parameter) in elsewhere:
                raise ValueError(
                    f"parameter '{name}' is trained by another open job of this program: leave it in one, "
                    "or finish() that job before"
                )
            _check(name, parameter)
            if holds_some_of(parameter) and id(parameter) not in slots:
                shared = share and SharedSlot.fits(parameter)
                slots[id(parameter)] = (SharedSlot if shared else Slot)(0, name, parameter, number)
                if share and not shared:
                    copied.append(name)
    if not slots:
        raise ValueError("the optimizer has no parameter that requires a gradient: there is nothing to train")
    if copied:
        logger.info("copied, because only contiguous float32 tensors on the CPU can be shared: %s", listed(copied))
    in_order = [slots[key] for key in names if key in slots]
    for index, slot in enumerate(in_order):
        slot.index = index
    if isinstance(model_or_params, torch.nn.Module):
        known = {id(p) for group in optimizer.param_groups for p in group["params"]}
        outside = [name for key, name in names.items() if key not in known and key not in elsewhere]
        if say and (outside or frozen):
            logger.info(
                "left out, because they are frozen or in no group: %s; rank 0's are every rank's at the beginning",
                listed(frozen + outside),
            )
    return in_order


@torch.no_grad()
def holds_some_of(parameter: torch.Tensor) -> bool:
    """Whether this rank has elements of it: of a tensor with fewer rows than ranks, some have none."""
    return slice_of(parameter).numel() > 0


def complete_gradients(groups: list[dict[str, Any]]) -> None:
    """Gradients without elements, for an optimizer that computes with all ranks of a DTensor (Muon)."""
    for parameter in (one for group in groups for one in group["params"]):
        if parameter.requires_grad and parameter.grad is None and is_split(parameter) and not holds_some_of(parameter):
            parameter.grad = torch.zeros_like(parameter)


def _check_layers(model: torch.nn.Module) -> None:
    together = torch.distributed.is_available() and torch.distributed.is_initialized()
    for name, layer in model.named_modules():
        if type(layer).__name__ == "FullyShardedDataParallel":
            raise TypeError(
                f"{name or 'the model'} is wrapped by FullyShardedDataParallel, whose parameters are pieces of many "
                "tensors: take fully_shard(), which keeps tensors and their names, and pass mesh= and replicate="
            )
        if isinstance(layer, torch.nn.SyncBatchNorm) and not together:
            raise TypeError(
                f"layer '{name}' is SyncBatchNorm, which adds up over a process group of torch.distributed, and there "
                "is none, so that each rank would have its own statistics: call init_process_group() before, take "
                "GroupNorm, or leave out convert_sync_batchnorm()"
            )


def sparse_layers(model_or_params: Parameters) -> list[str]:
    """Names of the model's layers whose gradients are sparse."""
    layers = model_or_params.named_modules() if isinstance(model_or_params, torch.nn.Module) else ()
    tables = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    return [name or type(layer).__name__ for name, layer in layers if isinstance(layer, tables) and layer.sparse]


def _check(name: str, parameter: torch.Tensor) -> None:
    if any(placement.is_partial() for placement in getattr(parameter, "placements", ())):
        raise TypeError(f"parameter '{name}' is a DTensor of partial sums: shard or replicate it")
    if parameter.layout != torch.strided:
        raise TypeError(f"parameter '{name}' has layout {parameter.layout}: only dense parameters are trained")
    if parameter.dtype not in _TYPES:
        raise TypeError(
            f"parameter '{name}' is {parameter.dtype}: parameters are float32, or bfloat16, float16 and float64, for "
            "which the servers keep float32"
        )
    if parameter.dtype == torch.float64:
        logger.warning("parameter '%s' is float64: the servers keep and step float32", name)


def tensors_of(slots: list[Slot], grouped: bool) -> list[Tensor]:
    """Their declarations. grouped: the job has a group for each of the optimizer's."""
    return [Tensor(slot.name, tuple(slot.local().shape), slot.group if grouped else 0) for slot in slots]


def frozen_of(model: Parameters, slots: list[Slot], elsewhere: Collection[int]) -> dict[str, torch.Tensor]:
    """A model's parameters that no job of the program trains, by name. elsewhere: as slots_of()."""
    if not isinstance(model, torch.nn.Module):
        return {}
    trained = {*elsewhere, *(id(slot.parameter) for slot in slots)}
    names = names_of(model)
    tensors = {id(parameter): parameter for parameter in model.parameters()}
    return {
        name: tensors[key]
        for key, name in names.items()
        if key not in trained and tensors[key].numel() and not is_split(tensors[key])
    }


def buffers_of(model: Parameters) -> Callable[[], dict[str, torch.Tensor]]:
    """Says a model's buffers by name that are in its state_dict() (running statistics, codebooks), as they are then."""
    places = [
        (f"{path}.{name}".lstrip("."), module, name)
        for path, module in (model.named_modules() if isinstance(model, torch.nn.Module) else ())
        for name in module._buffers
        if name not in module._non_persistent_buffers_set
    ]

    def now() -> dict[str, torch.Tensor]:
        found = ((path, module._buffers.get(name)) for path, module, name in places)
        return {path: buffer for path, buffer in found if buffer is not None and buffer.layout == torch.strided}

    return now


def computes_with(slots: list[Slot]) -> str:
    """Names torch's version and the device that computes the gradients; ranks compare it."""
    device = slots[0].parameter.device
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return f"torch {torch.__version__} {where}"
