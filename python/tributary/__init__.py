"""Tributary: distributed training for ordinary networks.

PyTorch programs use :mod:`tributary.torch`. This package itself has what every trainer shares: the session with the
node's worker daemon, over the C library (``session/tributary.h``), and its errors.
"""

from tributary._errors import (
    ConfigError,
    Error,
    JobStopped,
    LayoutMismatch,
    NotSaved,
    Status,
    Unavailable,
)
from tributary._library import AttachOptions, Gate, Library, Session, Stats, Step, Tensor, View, load

__version__ = "0.2.0"

__all__ = [
    "AttachOptions",
    "ConfigError",
    "Error",
    "Gate",
    "JobStopped",
    "LayoutMismatch",
    "Library",
    "NotSaved",
    "Session",
    "Stats",
    "Status",
    "Step",
    "Tensor",
    "Unavailable",
    "View",
    "load",
]
