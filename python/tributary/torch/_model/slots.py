"""The state of each parameter in a round."""

from __future__ import annotations

import os
from typing import Any

import torch

_SAMPLED = 16  # values of a tensor


class Sample:
    """A few values of a tensor, as they were. They show a write that raises no version (``p.grad.data``)."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._values = _some(tensor).clone()

    def differs(self, tensor: torch.Tensor) -> bool:
        """Whether one of them is another one now."""
        return not torch.allclose(_some(tensor), self._values, rtol=0.0, atol=0.0, equal_nan=True)


@torch.no_grad()
def _some(tensor: torch.Tensor) -> torch.Tensor:
    tensor = slice_of(tensor)
    if tensor.layout != torch.strided:
        return torch.empty(0)
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // _SAMPLED)][:_SAMPLED]


def times(gradient: torch.Tensor, factor: int) -> torch.Tensor:
    """A copy, fp32. Zero times what is not finite is zero."""
    if factor == 0:
        return torch.zeros_like(gradient, dtype=torch.float32)
    return gradient.to(torch.float32, copy=True).mul_(factor)


def as_slice(local: torch.Tensor, like: Any) -> torch.Tensor:
    """A DTensor that is laid out as another one, of what this rank has of it."""
    whole: torch.Tensor = type(like).from_local(
        local, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
    return whole


def slice_of(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor, as far as it is in this process: of a DTensor this rank's slice."""
    return tensor.to_local() if is_split(tensor) else tensor  # type: ignore[operator]


def is_split(tensor: torch.Tensor) -> bool:
    """Whether it is a DTensor."""
    return hasattr(tensor, "placements")


class MicroBatches:
    """Adds gradients in the tree in which ranks are added (``kernels/tree_sum.h``): neighbours, level by level.

    One process with k micro-batches so has the bits of k ranks. At most log2(k) + 1 sums are held.
    """

    def __init__(self) -> None:
        self._sums: list[tuple[int, torch.Tensor]] = []  # (level, sum), the first ones of the highest level first

    def add(self, gradient: torch.Tensor) -> None:
        """Takes the next micro-batch's gradient, an fp32 tensor that is this object's from now on."""
        level = 0
        while self._sums and self._sums[-1][0] == level:
            gradient = self._sums.pop()[1].add_(gradient)
            level += 1
        self._sums.append((level, gradient))

    def take(self) -> torch.Tensor:
        """The sum of all; none are left. An odd last one of a level moves up unchanged."""
        total = self._sums.pop()[1]
        while self._sums:
            total = self._sums.pop()[1].add_(total)
        return total

    def __bool__(self) -> bool:
        return bool(self._sums)


class Slot:
    """A parameter that the job trains.

    Attributes:
        index: of its tensor in the job.
        group: of the optimizer's.
        share: of its gradient that this rank gives: all, none if another rank gives the same one, or a part if ranks
            that hold the model together take the mean of theirs.
    """

    def __init__(self, index: int, name: str, parameter: torch.nn.Parameter, group: int) -> None:
        self.index = index
        self.name = name
        self.parameter = parameter
        self.group = group
        self.share = 1.0
        # The parameter's, when its values were last taken from the job.
        self._version = parameter._version
        self._sample: Sample | None = None
        self.micro_batches = MicroBatches()
        self.hook: torch.utils.hooks.RemovableHandle | None = None
        self.clear()

    def clear(self) -> None:
        """Begins a round."""
        self.passes = 0  # backward passes that gave it a gradient
        self.sent = False
        # The values sent: `source` times `factor`, or zeros.
        self.source: torch.Tensor | None = None
        self.factor = 1
        # p.grad as note_gradient() saw it.
        self._noted: torch.Tensor | None = None
        self._noted_version = 0
        self._noted_sample: Sample | None = None

    @property
    def is_split(self) -> bool:
        """Whether it is a DTensor."""
        return is_split(self.parameter)

    @torch.no_grad()
    def local(self) -> torch.Tensor:
        """This process' values of the parameter: of a DTensor this rank's slice. ``data`` has its own version: autograd
        sees no write.
        """
        values: torch.Tensor = self.parameter.to_local() if self.is_split else self.parameter.data  # type: ignore[operator]
        return values

    def set_gradient(self, local: torch.Tensor) -> None:
        """Makes a tensor like :meth:`local` the parameter's gradient."""
        p = self.parameter
        local = local.to(p.dtype)
        p.grad = as_slice(local, p) if self.is_split else local

    def give(self, memory: torch.Tensor) -> None:
        """Writes the parameter into the job's memory."""
        memory.copy_(self.local())

    def take(self, values: torch.Tensor, non_blocking: bool = False) -> None:
        """Writes the job's values into the parameter."""
        self.local().copy_(values, non_blocking=non_blocking)
        self._version = self.parameter._version

    def put(self, values: torch.Tensor) -> None:
        """Writes other values into the parameter, until the job's are taken."""
        self.take(values)

    def watch(self, samples: bool) -> None:
        """Its values have been taken. samples: a write without a version is to be seen, too."""
        self._sample = Sample(self.local()) if samples else None

    def written(self) -> bool:
        """Whether the parameter was written since its values were last taken."""
        if self.parameter._version != self._version:
            return True
        return self._sample is not None and self._sample.differs(self.local())

    def remember(self, source: torch.Tensor | None, factor: int) -> None:
        """Notes the values that are sent."""
        self.sent = True
        self.source = source if factor else None  # zero times what is not finite is zero
        self.factor = factor

    def note_gradient(self, samples: bool) -> None:
        """Remembers how p.grad looks now. samples: a write without a version is to be seen, too."""
        grad = self.parameter.grad
        self._noted = grad
        if grad is not None:
            self._noted_version = grad._version
            self._noted_sample = Sample(grad) if samples else None

    def gradient_changed(self) -> bool:
        """Whether p.grad is another one than was noted. One that was set to None was not changed."""
        now = self.parameter.grad
        if now is None:
            return False
        return now._version != self._noted_version or now is not self._noted or self.gradient_rewritten()

    def gradient_rewritten(self) -> bool:
        """Whether p.grad has other values than were noted, as far as samples show."""
        now = self.parameter.grad
        return now is not None and self._noted_sample is not None and self._noted_sample.differs(now)


class SharedSlot(Slot):
    """A parameter that is read where the node's worker writes it (``parameters="shared"``)."""

    @staticmethod
    def fits(parameter: torch.nn.Parameter) -> bool:
        """Whether the parameter can be what the job has: fp32 in logical order, in host memory."""
        plain = not is_split(parameter) and parameter.device.type == "cpu"
        return plain and parameter.dtype == torch.float32 and parameter.is_contiguous()

    def take(self, values: torch.Tensor, non_blocking: bool = False) -> None:
        """Makes the job's values the parameter's own memory."""
        if self.parameter.data_ptr() != values.data_ptr():
            self.parameter.data = values
        self._version = self.parameter._version

    def watch(self, samples: bool) -> None:
        """Does nothing: its pages show writes."""

    def written(self) -> bool:
        """Also by a write that raises no version (``p.data``): its page is this process' own then, and shows no later
        round.
        """
        return super().written() or _has_own_pages(self.parameter.data_ptr(), 4 * self.parameter.numel())


def _has_own_pages(address: int, size: int) -> bool:
    """Whether pages of a private mapping are no longer the file's: bits 61 and 63 of ``/proc/self/pagemap``."""
    page = os.sysconf("SC_PAGE_SIZE")
    first, last = address // page, (address + size - 1) // page
    with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        pagemap.seek(8 * first)
        entries = pagemap.read(8 * (last - first + 1))
    words = torch.frombuffer(bytearray(entries), dtype=torch.int64)
    return bool(((words < 0) & (words & (1 << 61) == 0)).any())
