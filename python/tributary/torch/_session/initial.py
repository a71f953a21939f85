"""Rank 0's initial values, for a job that has to begin again."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence

from tributary._library import Floats


class InitialValues:
    """Keeps values in a file without a name.

    A job that loses a server before its first snapshot begins again, and shall do so with the same values.

    Args:
        memory: a session's, of all tensors.
    """

    def __init__(self, memory: Sequence[Floats]) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115
        for values in memory:
            self._file.write(values)
        self._file.flush()

    def read(self, memory: Sequence[Floats]) -> None:
        """Writes them into a session's memory of the same tensors."""
        self._file.seek(0)
        for values in memory:
            if self._file.readinto(values) != len(memoryview(values).cast("B")):  # type: ignore[attr-defined]
                raise OSError("the file of initial values is cut off: is the disk of temporary files full?")

    def close(self) -> None:
        """Frees the disk. Nothing can be read any more."""
        self._file.close()
