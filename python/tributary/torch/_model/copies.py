"""How values travel between a model's tensors and the memory that a session shares with the worker."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

import torch

from tributary._library import Floats, Session
from tributary.torch._base.log import logger
from tributary.torch._model.slots import Slot


class Copies:
    """Each is over when its call returns. Right for whatever device a tensor is on.

    Attributes:
        device: the CUDA device that sessions are attached with; -1: none.
    """

    device = -1

    def __init__(self) -> None:
        self._tensors: dict[tuple[int, tuple[int, ...]], torch.Tensor] = {}

    def tensor_of(self, floats: Floats, shape: tuple[int, ...], on_device: bool) -> torch.Tensor:
        """Memory of the session as a tensor."""
        key = (ctypes.addressof(floats), shape)
        tensor = self._tensors.get(key)
        if tensor is None:
            tensor = self._tensors[key] = self._view_of(floats, shape, on_device)
        return tensor

    def _view_of(self, floats: Floats, shape: tuple[int, ...], on_device: bool) -> torch.Tensor:
        assert not on_device, "memory of a device is lent to whoever asks for it only"
        return torch.frombuffer(floats, dtype=torch.float32).view(shape)

    def give(self, memory: torch.Tensor, source: torch.Tensor | None, factor: float) -> None:
        """Writes ``source`` times ``factor``, or zeros, where the session has the gradient."""
        if source is None:
            memory.zero_()
            return
        memory.copy_(source)
        if factor != 1:
            memory.mul_(factor)

    def ready(self, session: Session, index: int, weight: int, rate: float) -> None:
        """Says that what was given is the tensor's gradient."""
        session.ready(index, weight, rate)

    def wait_given(self) -> None:
        """Blocks until all that was given is where the session has it: this rank has done its part of the round."""

    def take(self, slot: Slot, values: torch.Tensor) -> None:
        """Writes the session's values into the parameter; inside :meth:`taking`."""
        slot.take(values)

    @contextlib.contextmanager
    def taking(self) -> Iterator[None]:
        """After it the model has the values that were taken inside."""
        yield

    def finish(self) -> None:
        """The session's memory ends: waits until no copy is under way."""
        self._tensors.clear()


class StreamCopies(Copies):
    """Copies of a model on a GPU, on their own stream: neither the program nor the model's kernels wait for them.

    A copy takes the values as of the program's current stream; a host function on the stream reports it ready.
    Where the worker lends memory of the device, copies stay on it; else they go through pinned memory of the host.

    Args:
        device: a CUDA device, with its index.
        cuda: ``torch.cuda``, or what stands for it in a test.
    """

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        super().__init__()
        assert device.index is not None
        self.device = device.index
        self._device = device
        self._cuda = cuda
        self._stream = cuda.Stream(device)
        # Host functions have a stream of their own: the next copy need not wait for the report of the one before.
        self._telling = cuda.Stream(device)

    def _view_of(self, floats: Floats, shape: tuple[int, ...], on_device: bool) -> torch.Tensor:
        if not on_device:
            return super()._view_of(floats, shape, on_device)
        return torch.as_tensor(_DeviceArray(ctypes.addressof(floats), shape), device=self._device)

    @contextlib.contextmanager
    def _on_stream(self) -> Iterator[None]:
        # The device first: leaving a stream makes a context on the device that is current, whatever the program uses.
        with self._cuda.device(self._device), self._cuda.stream(self._stream):
            yield

    def give(self, memory: torch.Tensor, source: torch.Tensor | None, factor: float) -> None:
        if source is not None and (source.device.type, source.device.index or 0) != (self._device.type, self.device):
            raise RuntimeError(
                f"a gradient is on {source.device}, and the model was on {self._device} when the job was attached: "
                "move the model before the DistributedOptimizer is made"
            )
        self._stream.wait_stream(self._cuda.current_stream(self._device))
        with self._on_stream():
            if source is None:
                memory.zero_()
                return
            # Its owner may be done with it before the stream is.
            source.record_stream(self._stream)
            # Converted over there: a copy to the host that converts is waited for, and goes through pageable memory.
            if source.dtype != memory.dtype:
                source = source.to(memory.dtype)
            if factor != 1:
                source = source.mul(factor)
            memory.copy_(source, non_blocking=True)

    def ready(self, session: Session, index: int, weight: int, rate: float) -> None:
        self._telling.wait_stream(self._stream)
        session.ready_after(index, weight, rate, self._telling.cuda_stream)

    def wait_given(self) -> None:
        self._stream.synchronize()

    def take(self, slot: Slot, values: torch.Tensor) -> None:
        with self._on_stream():
            if slot.parameter.dtype != values.dtype:  # converted over there: the host would wait for the copy
                values = values.to(self._device, non_blocking=True)
            slot.take(values, non_blocking=True)

    @contextlib.contextmanager
    def taking(self) -> Iterator[None]:
        # The program's kernels read the old values until here, and the new ones after it.
        self._stream.wait_stream(self._cuda.current_stream(self._device))
        try:
            yield
        finally:
            self._cuda.current_stream(self._device).wait_stream(self._stream)

    def finish(self) -> None:
        # The program's kernels read memory of the session, too: a trainer that steps copies mean gradients.
        for stream in (self._cuda.current_stream(self._device), self._stream, self._telling):
            with contextlib.suppress(RuntimeError):  # of a device that has failed nothing is under way
                stream.synchronize()
        super().finish()


class _DeviceArray:
    """fp32 values in logical order on a CUDA device, as the CUDA array interface names them."""

    def __init__(self, address: int, shape: tuple[int, ...]) -> None:
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": "<f4",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }


def copies_of(slots: list[Slot]) -> Copies:
    """For a model with these parameters: on a stream, if all of it is on one GPU.

    torch reads the CUDA array interface with NumPy, which it can be installed without, or with one that it cannot use.
    """
    devices = {slot.local().device for slot in slots}
    if all(device.type != "cuda" for device in devices):
        return Copies()
    if len(devices) > 1:
        why = "its parameters are on " + ", ".join(sorted(map(str, devices)))
    elif not _has_numpy():
        why = "this Python has no NumPy that torch can use; install numpy"
    else:
        return StreamCopies(devices.pop())
    logger.warning("each copy between the model and the job is waited for: %s", why)
    return Copies()


def _has_numpy() -> bool:
    try:
        torch.zeros(1).numpy()
    except RuntimeError:
        return False
    return True
