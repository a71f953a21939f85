"""State that is equal on all ranks and not on servers. One rank gives it to ranks that have none."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from typing import Any, Callable

import torch

from tributary.torch._base.log import listed, logger
from tributary.torch._model import declare
from tributary.torch._model.slots import Slot, as_slice, is_split, slice_of
from tributary.torch._steps import optimizer_state

AT_BEGINNING = 256 << 20  # bytes of buffers and frozen parameters that one rank gives to all
EACH_ROUND = 16 << 20  # bytes that go with each round; more goes with snapshots, stops and losses
SAMPLES = 256  # elements of a frozen tensor that are compared


class Alike:
    """The state of one job that is equal on all its ranks.

    Args:
        frozen: parameters of the model that the job does not train, by name.
        buffers: returns the model's buffers, by name, as they are then.
        slots: the parameters that the job trains.
        optimizer: steps here, and has state; None: servers have it, and the parameters.
        is_part: this rank holds a part of the model, and so do the others, of which most hold another one.
    """

    def __init__(
        self,
        frozen: dict[str, torch.Tensor],
        buffers: Callable[[], dict[str, torch.Tensor]] = dict,
        slots: list[Slot] | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        is_part: bool = False,
    ) -> None:
        self._frozen = frozen
        self._buffers = buffers
        self._slots = slots or []
        self._optimizer = optimizer
        self._mark = ""
        self._warns = is_part  # of state that is too large to go with rounds, once

    # ---- at the job's beginning

    def beginning(self) -> dict[str, Any]:
        """Returns the state that one rank gives to all: buffers, and frozen parameters if they are not too large."""
        tensors = {**self._buffers(), **self._frozen}
        if _size(tensors.values()) > AT_BEGINNING:
            logger.info(
                "the model's %d frozen parameters are too large to be given to the other ranks: they are compared",
                len(self._frozen),
            )
            tensors = self._buffers()
        return {"tensors": tensors, "frozen": self.mark()}

    @torch.no_grad()
    def begin(self, given: dict[str, Any]) -> None:
        """With what another rank gave.

        Raises:
            ValueError: the model has other tensors, or other frozen values that are too large to be sent.
        """
        there = {**self._buffers(), **self._frozen}
        for name, values in given["tensors"].items():
            if name not in there or there[name].shape != values.shape:
                raise ValueError(
                    f"the first rank's model has a tensor '{name}' of shape {tuple(values.shape)}, which this rank's "
                    "has not: all ranks must make the same model"
                )
            there[name].data.copy_(values)
        self._mark = ""
        self.check(given["frozen"])

    def mark(self) -> str:
        """By which the frozen parameters are known: of samples, because there may be gigabytes."""
        if not self._mark and self._frozen:
            digest = hashlib.sha256()
            for name, tensor in sorted(self._frozen.items()):
                flat = tensor.detach().reshape(-1)
                some = flat[:: max(1, flat.numel() // SAMPLES)].cpu().contiguous()
                digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
                digest.update(some.view(torch.uint8).numpy().tobytes())
            self._mark = digest.hexdigest()
        return self._mark

    def check(self, mark: str) -> None:
        """Raises if the job was begun with other frozen parameters."""
        if mark and mark != self.mark():
            raise ValueError(
                f"the model's frozen parameters ({listed(list(self._frozen))}) are others than those that the job "
                "began with: load them from the same file, or make them with the same seed, on all ranks and in each "
                "start"
            )

    # ---- with rounds, if the optimizer steps here

    @property
    def steps_here(self) -> bool:
        return self._optimizer is not None

    @property
    def goes_with_rounds(self) -> bool:
        """Whether it is small enough."""
        assert self._optimizer is not None
        arrays = (value for state in self._optimizer.state.values() for value in state.values())
        tensors = [one for one in arrays if isinstance(one, torch.Tensor)]
        size = _size([*(slot.local() for slot in self._slots), *map(slice_of, tensors)])
        if size > EACH_ROUND and self._warns:
            self._warns = False
            logger.warning(
                "%s steps on the trainers, and %d MiB of parameters and state are of this rank's part of the model. At "
                "most %d MiB are kept with a round, so a lost rank ends the job: save checkpoints of your own, or take "
                "an optimizer that steps on the servers",
                type(self._optimizer).__name__,
                size >> 20,
                EACH_ROUND >> 20,
            )
        return size <= EACH_ROUND

    @torch.no_grad()
    def state(self) -> dict[str, Any]:
        """Parameters, and the state of their optimizer, after a round."""
        assert self._optimizer is not None
        parameters = self._parameters()
        return {
            "parameters": {slot.name: slot.local() for slot in self._slots},
            "optimizer": {
                number: {key: _kept_as(value, parameters[number]) for key, value in arrays.items()}
                for number, arrays in self._optimizer.state_dict()["state"].items()
            },
        }

    def _parameters(self) -> list[torch.Tensor]:
        """By the optimizer's numbers."""
        assert self._optimizer is not None
        return [parameter for group in self._optimizer.param_groups for parameter in group["params"]]

    def forget(self) -> None:
        """Clears the optimizer's state."""
        assert self._optimizer is not None
        self._optimizer.state.clear()

    @torch.no_grad()
    def load(self, given: dict[str, Any]) -> None:
        """Loads a result of state(), of this rank or another."""
        assert self._optimizer is not None
        for slot in self._slots:
            slot.put(given["parameters"][slot.name])
        parameters = self._parameters()
        arrays = {
            number: {key: _as_it_was(value, parameters[number]) for key, value in arrays.items()}
            for number, arrays in given["optimizer"].items()
        }
        optimizer_state.load_arrays(self._optimizer, arrays)


def alike_of(
    model: declare.Parameters,
    slots: list[Slot],
    optimizer: torch.optim.Optimizer | None,
    is_part: bool,
    elsewhere: Collection[int],
) -> Alike:
    """A model, which its ranks have alike; of ranks that hold a part of it each: only what the optimizer steps."""
    if is_part:
        return Alike({}, slots=slots, optimizer=optimizer, is_part=True)
    return Alike(declare.frozen_of(model, slots, elsewhere), declare.buffers_of(model), slots, optimizer)


def _kept_as(value: Any, parameter: Any) -> Any:
    """An optimizer's value that belongs to a parameter; of a DTensor this rank's slice.

    Raises:
        TypeError: it is laid out otherwise than the parameter.
    """
    if not isinstance(value, torch.Tensor) or not is_split(value):
        return value
    one: Any = value
    if not is_split(parameter) or (one.device_mesh, one.placements) != (parameter.device_mesh, parameter.placements):
        raise TypeError(
            f"the optimizer has state that is laid out {one.placements}, of a parameter that is "
            f"{getattr(parameter, 'placements', 'whole')}: only state that is laid out as its parameter can be kept"
        )
    return ("slice", slice_of(one))


def _as_it_was(value: Any, parameter: Any) -> Any:
    """A value that belongs to a parameter, as it was when it was kept."""
    return as_slice(value[1], parameter) if isinstance(value, tuple) and value[0] == "slice" else value


def _size(tensors: Iterator[torch.Tensor] | Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
