"""State as bytes and back: what the ``state_dict()`` of schedulers, generators and loaders is made of.

The bytes come back from other processes. Reading them therefore makes nothing but numbers, text, tensors, arrays and
containers of them.
"""

from __future__ import annotations

import collections
import io
import pickle
import sys
from dataclasses import dataclass
from typing import Any

import torch

LIMIT = (256 << 10) - 32  # bytes of a rank's state (common/wire/attach_messages.h: kMaxRankState)
LARGE = 4096  # bytes of a tensor that is apart from the others

_WORDS = frozenset({type(None), bool, int, float, str, bytes})
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


@dataclass(frozen=True)
class Packed:
    """A value as bytes, and the tensors of it that are apart, as bytes in the host's memory."""

    data: bytes = b""
    tensors: tuple[torch.Tensor, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.data)

    @property
    def size(self) -> int:
        """Bytes of all."""
        return len(self.data) + sum(tensor.numel() for tensor in self.tensors)

    # ---- as a rank's state: bytes, and a large part

    def state(self) -> bytes:
        return pickle.dumps((self.data, [tensor.numel() for tensor in self.tensors]), protocol=5)

    def pieces(self) -> list[tuple[int, int]]:
        """Returns addresses and sizes of the large part, in order. They are valid as long as this object."""
        return [(tensor.data_ptr(), tensor.numel()) for tensor in self.tensors]

    @staticmethod
    def of(state: bytes, large: memoryview) -> Packed:
        """Copies the tensors.

        Raises:
            ValueError: these are no such bytes.
        """
        try:
            data, sizes = _Reader(io.BytesIO(state)).load()
            tensors, offset = [], 0
            for size in sizes:
                if offset + size > len(large):
                    raise ValueError("its large part is not there")
                tensors.append(torch.frombuffer(bytearray(large[offset : offset + size]), dtype=torch.uint8))
                offset += size
            return Packed(bytes(data), tuple(tensors))
        except Exception as error:
            raise ValueError(f"a state that was kept cannot be read: {error}") from error


NOTHING = Packed()


def packed(value: Any, what: str) -> Packed:
    """A value, whose tensors may change from now on. There may be others that were packed in it.

    Raises:
        NotPlain: there is something in it that cannot be kept; the message names ``what`` and the type.
    """
    apart: list[torch.Tensor] = []
    return Packed(pickle.dumps(_plain(value, what, apart), protocol=5), tuple(apart))


def unpacked(whole: Packed) -> Any:
    """The value of :func:`packed`. Its tensors are copies; what was packed in it is packed.

    Raises:
        ValueError: these are no such bytes.
    """
    try:
        return _restored(_Reader(io.BytesIO(whole.data)).load(), whole.tensors)
    except Exception as error:
        raise ValueError(f"a state that was kept cannot be read: {error}") from error


def encoded(value: Any, what: str) -> bytes:
    """A small value as bytes, with its tensors. Raises NotPlain as :func:`packed`."""
    return pickle.dumps(_plain(value, what, None), protocol=5)


def decoded(data: bytes) -> Any:
    """The value of :func:`encoded`. Raises ValueError: these are no such bytes."""
    return unpacked(Packed(data))


def _plain_items(values: Any, what: str, apart: list[torch.Tensor] | None) -> list[Any]:
    if _WORDS.issuperset(map(type, values)):  # as the 625 of Python's random numbers, in every round
        return list(values)
    return [_plain(item, what, apart) for item in values]


def _plain(value: Any, what: str, apart: list[torch.Tensor] | None) -> Any:
    """Containers that are no list or dict become a tuple with their name, and so do tensors and arrays."""
    if type(value) in _WORDS:
        return value
    if isinstance(value, torch.Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        if apart is not None and flat.numel() >= LARGE:
            apart.append(flat.clone() if flat.data_ptr() == value.data_ptr() else flat)
            return ("tensor", str(value.dtype), tuple(value.shape), len(apart) - 1)
        return ("tensor", str(value.dtype), tuple(value.shape), flat.numpy().tobytes())
    if isinstance(value, Packed):
        first = len(apart) if apart is not None else 0
        if apart is None and value.tensors:
            raise NotPlain(f"{what} has a large part")
        if apart is not None:
            apart.extend(value.tensors)
        return ("packed", value.data, first, len(value.tensors))
    if isinstance(value, dict):
        kind = type(value).__name__
        items = {_plain(key, what, apart): _plain(item, what, apart) for key, item in value.items()}
        return (kind, items) if kind in _MAPPINGS else items
    if isinstance(value, list):
        return _plain_items(value, what, apart)
    if type(value).__name__ in _CONTAINERS and isinstance(value, _CONTAINERS[type(value).__name__]):
        return (type(value).__name__, _plain_items(value, what, apart))
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray) and not value.dtype.hasobject:
        return ("array", value.dtype.str, value.shape, value.tobytes())
    if numpy is not None and isinstance(value, numpy.generic):
        return _plain(value.item(), what, apart)
    for plain in (bool, int, float, str):  # an enumeration, a NumPy string
        if isinstance(value, plain):
            return plain(value)
    raise NotPlain(f"{what} has a {type(value).__module__}.{type(value).__qualname__}")


def _restored(value: Any, apart: tuple[torch.Tensor, ...]) -> Any:
    if isinstance(value, dict):
        return {_restored(key, apart): _restored(item, apart) for key, item in value.items()}
    if isinstance(value, list):
        return [_restored(item, apart) for item in value]
    if not isinstance(value, tuple):
        return value
    kind, *rest = value
    if kind == "packed":
        data, first, count = rest
        return Packed(data, apart[first : first + count])
    if kind == "tensor":
        dtype, shape, data = rest
        if isinstance(data, int):
            flat = apart[data].clone()
        else:  # memory that can be written, and is not shared with the bytes
            flat = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
        return flat.view(getattr(torch, dtype.removeprefix("torch."))).reshape(shape)
    if kind == "array":
        import numpy

        dtype, shape, data = rest
        return numpy.frombuffer(data, dtype=dtype).reshape(shape).copy()
    if kind in _MAPPINGS:
        return _MAPPINGS[kind](_restored(rest[0], apart))
    return _CONTAINERS[kind](_restored(rest[0], apart))
