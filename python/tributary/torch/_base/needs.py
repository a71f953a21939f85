"""Which torch there must be, and what is said where there is none."""

from __future__ import annotations

import platform
import re
import sys
from typing import Any

OLDEST = (2, 1)

_CURE = (
    "Install it with `pip install torch numpy`. Where pip refuses, as Debian's does, make a virtual environment first: "
    "`python3 -m venv venv && . venv/bin/activate && pip install torch numpy`"
)


def without_torch(error: ImportError) -> str:
    """Returns the error of `import torch` and the cure. A torch that fails names another module, or none."""
    this = f"this Python ({sys.executable}, {platform.python_version()})"
    found = f"{this} has none" if error.name == "torch" else f"the torch of {this} cannot be imported"
    return f"tributary.torch needs torch 2.1 or newer, and {found}: {error}. {_CURE}"


def check(torch: Any) -> None:
    """Refuses a torch that is too old."""
    version = str(getattr(torch, "__version__", "without a version"))
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST:
        place = getattr(torch, "__file__", None) or sys.executable
        raise ImportError(f"tributary.torch needs torch 2.1 or newer, and {place} is torch {version}. {_CURE}")
