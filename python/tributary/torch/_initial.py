"""Rank 0's initial values, for a job that has to begin anew."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence

import torch


class InitialValues:
    """Keeps tensors in a file without a name. A job that loses a server before its first snapshot begins anew, and
    shall do so with the same values.

    Args:
        values: contiguous fp32 tensors in host memory.
    """

    def __init__(self, values: Sequence[torch.Tensor]) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115: as long as this object lives
        for tensor in values:
            self._file.write(memoryview(tensor.reshape(-1).numpy()).cast("B"))
        self._file.flush()

    def read(self, into: Sequence[torch.Tensor]) -> None:
        """Writes them into tensors of the same shapes."""
        self._file.seek(0)
        for tensor in into:
            self._file.readinto(memoryview(tensor.reshape(-1).numpy()).cast("B"))  # type: ignore[attr-defined]
