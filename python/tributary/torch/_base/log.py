"""The front end's log: lines of the logger ``tributary``."""

from __future__ import annotations

import logging

logger = logging.getLogger("tributary")


def show_by_default() -> None:
    """Lines are shown, on standard error unless the program has said where its logs go, or how many it wants."""
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    if logger.handlers or logging.getLogger().handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("tributary: %(message)s"))
    logger.addHandler(handler)
    logger.propagate = False


def listed(names: list[str], most: int = 8) -> str:
    """Names for a message: all of them, or the first ones and how many more there are."""
    text = ", ".join(names[:most])
    return text if len(names) <= most else f"{text} and {len(names) - most} more"
