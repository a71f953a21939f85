"""Waiting for what takes a second on an idle machine."""

import time
from collections.abc import Callable
from typing import Any

PATIENCE = 100.0  # seconds


def eventually(condition: Callable[[], Any], patience: float = PATIENCE) -> Any:
    """What it returns as soon as that counts as true; what it returned last if it never does."""
    end = time.monotonic() + patience
    while True:
        found = condition()
        if found or time.monotonic() > end:
            return found
        time.sleep(0.05)
