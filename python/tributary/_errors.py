"""Errors of the C library as exceptions: a class for each thing that a program may want to do about one."""

from __future__ import annotations

import enum


class Status(enum.IntEnum):
    """The numbers of ``tributary_status`` that have a name."""

    OK = 0
    INTERNAL = 1
    INVALID_ARGUMENT = 2
    CONFIG = 3
    STALE_VIEW = 9
    WRONG_ROUND = 10
    LAYOUT_MISMATCH = 11
    CONFIG_MISMATCH = 12
    TOPOLOGY = 13
    STORE = 15
    TIMEOUT = 17
    UNAVAILABLE = 18
    STOPPED = 19
    LIMIT = 20
    NO_DEVICE = 22


class Error(RuntimeError):
    """An error that the library, the worker daemon or the coordinator reported.

    Attributes:
        status: a :class:`Status`, or the plain number of one that this release does not know.
    """

    def __init__(self, message: str, status: int = Status.INTERNAL) -> None:
        super().__init__(message)
        try:
            self.status: int = Status(status)
        except ValueError:
            self.status = status


class ConfigError(Error):
    """The job's text is wrong, or differs from that of the job with this name."""


class LayoutMismatch(Error):
    """The job with this name has other tensors."""


class Unavailable(Error):
    """A daemon or a member is not there, or is gone: attach again."""

    def __init__(self, message: str, status: int = Status.UNAVAILABLE) -> None:
        super().__init__(message, status)


class JobStopped(Error):
    """The job was stopped cleanly."""


class NotSaved(Error):
    """The state that the job ended with is not durable."""


_CLASSES: dict[int, type[Error]] = {
    Status.CONFIG: ConfigError,
    Status.CONFIG_MISMATCH: ConfigError,
    Status.LAYOUT_MISMATCH: LayoutMismatch,
    Status.STALE_VIEW: Unavailable,
    Status.TIMEOUT: Unavailable,
    Status.UNAVAILABLE: Unavailable,
    Status.STOPPED: JobStopped,
    Status.STORE: NotSaved,
}


def error_of(status: int, message: str) -> Error:
    """The exception for a status and the library's words about it."""
    return _CLASSES.get(status, Error)(message, status)
