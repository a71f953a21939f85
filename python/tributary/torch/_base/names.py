"""The default name of a job."""

from __future__ import annotations

import re
import sys
from pathlib import Path


def default_name(taken: list[str]) -> str:
    """The program's name, as a job's name may be; with a number for the second job of a program.

    Raises:
        ValueError: there is no program: a notebook, or an interpreter that people type into.
    """
    stem = _program()
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-") or "python"
    if name not in taken:
        return name
    return next(f"{name}-{i}" for i in range(2, len(taken) + 3) if f"{name}-{i}" not in taken)


def _program() -> str:
    main = sys.modules.get("__main__")
    if hasattr(sys, "ps1") and not hasattr(main, "__file__"):
        raise ValueError(
            "a notebook, or an interpreter that is typed into, has no name that its job could have: give name=. A cell "
            "that is run again then means the same job"
        )
    stem = Path(sys.argv[0] if sys.argv and sys.argv[0] else "python").stem
    spec = getattr(main, "__spec__", None)
    if stem == "__main__" and spec is not None and spec.parent:
        return str(spec.parent).rpartition(".")[2]  # `python -m package`
    return stem
