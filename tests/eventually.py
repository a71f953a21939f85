"""Waiting for what takes a second on an idle machine."""

import time
from collections.abc import Callable
from typing import Any

PATIENCE = 100.0  # seconds


def eventually(condition: Callable[[], Any], patience: float = PATIENCE) -> Any:
    """Returns the first result that counts as true, or the last one if none does."""
    end = time.monotonic() + patience
    while True:
        found = condition()
        if found or time.monotonic() > end:
            return found
        time.sleep(0.05)
