"""State as bytes and back: what the ``state_dict()`` of schedulers, generators and loaders is made of.

The bytes come back from other processes. Reading them therefore makes nothing but numbers, text, tensors, arrays and
containers of them.
"""

from __future__ import annotations

import collections
import io
import pickle
import sys
from typing import Any

import torch

LIMIT = (256 << 10) - 32  # bytes of a rank's state (common/wire/attach_messages.h: kMaxRankState)
LARGE = 4096  # bytes of a tensor that is apart from the others

_CONTAINERS: dict[str, Any] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": collections.deque,
}
_MAPPINGS: dict[str, Any] = {"OrderedDict": collections.OrderedDict, "Counter": collections.Counter}


class NotPlain(TypeError):
    """A value of a kind that cannot be kept."""


class _Reader(pickle.Unpickler):
    """Reads builtin values only (https://docs.python.org/3/library/pickle.html#restricting-globals)."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} in a state that was kept")


class Large:
    """The large part of a state: tensors, one behind the other."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []  # of bytes, in the host's memory
        self.size = 0

    def add(self, flat: torch.Tensor) -> int:
        """Its offset."""
        offset = self.size
        self.tensors.append(flat)
        self.size += flat.numel()
        return offset

    def pieces(self) -> list[tuple[int, int]]:
        """Addresses and sizes. They are those of the tensors that were given, where these are contiguous."""
        return [(tensor.data_ptr(), tensor.numel()) for tensor in self.tensors]


def encoded(value: Any, what: str, large: Large | None = None) -> bytes:
    """A value as bytes.

    Args:
        large: takes the tensors of LARGE bytes and more.

    Raises:
        NotPlain: there is something in it that cannot be kept; the message names ``what`` and the type.
    """
    return pickle.dumps(_plain(value, what, large), protocol=5)


def decoded(data: bytes, large: memoryview | None = None) -> Any:
    """The value of :func:`encoded`. Its tensors are copies.

    Raises:
        ValueError: these are no such bytes.
    """
    try:
        return _restored(_Reader(io.BytesIO(data)).load(), large)
    except Exception as error:
        raise ValueError(f"a state that was kept cannot be read: {error}") from error


def _plain(value: Any, what: str, large: Large | None) -> Any:
    """Containers that are no list or dict become a tuple with their name, and so do tensors and arrays."""
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    if isinstance(value, torch.Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        if large is not None and flat.numel() >= LARGE:
            return ("large", str(value.dtype), tuple(value.shape), large.add(flat), flat.numel())
        return ("tensor", str(value.dtype), tuple(value.shape), flat.numpy().tobytes())
    if isinstance(value, dict):
        kind = type(value).__name__
        items = {_plain(key, what, large): _plain(item, what, large) for key, item in value.items()}
        return (kind, items) if kind in _MAPPINGS else items
    if isinstance(value, list):
        return [_plain(item, what, large) for item in value]
    if type(value).__name__ in _CONTAINERS and isinstance(value, _CONTAINERS[type(value).__name__]):
        return (type(value).__name__, [_plain(item, what, large) for item in value])
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray) and not value.dtype.hasobject:
        return ("array", value.dtype.str, value.shape, value.tobytes())
    if numpy is not None and isinstance(value, numpy.generic):
        return _plain(value.item(), what, large)
    for plain in (bool, int, float, str):  # an enumeration, a NumPy string
        if isinstance(value, plain):
            return plain(value)
    raise NotPlain(f"{what} has a {type(value).__module__}.{type(value).__qualname__}")


def _restored(value: Any, large: memoryview | None) -> Any:
    if isinstance(value, dict):
        return {_restored(key, large): _restored(item, large) for key, item in value.items()}
    if isinstance(value, list):
        return [_restored(item, large) for item in value]
    if not isinstance(value, tuple):
        return value
    kind, *rest = value
    if kind in ("tensor", "large"):
        dtype, shape, data = rest[:3]
        if kind == "large":
            if large is None or data + rest[3] > len(large):
                raise ValueError("its large part is not there")
            data = large[data : data + rest[3]]
        # Memory that can be written, and is not shared with the bytes.
        flat = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
        return flat.view(getattr(torch, dtype.removeprefix("torch."))).reshape(shape)
    if kind == "array":
        import numpy

        dtype, shape, data = rest
        return numpy.frombuffer(data, dtype=dtype).reshape(shape).copy()
    if kind in _MAPPINGS:
        return _MAPPINGS[kind](_restored(rest[0], large))
    return _CONTAINERS[kind](_restored(rest[0], large))
