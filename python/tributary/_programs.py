"""The programs that a wheel carries: each console script becomes its program."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

FOLDER = Path(__file__).resolve().parent / "bin"


def _become(name: str) -> NoReturn:
    program = FOLDER / name
    if not os.access(program, os.X_OK):
        sys.exit(f"{name}: this installation has no {program}; install the wheel that `make wheel` makes")
    os.execv(program, [str(program), *sys.argv[1:]])


def tributary() -> NoReturn:
    _become("tributary")


def server() -> NoReturn:
    _become("tributary-server")


def worker() -> NoReturn:
    _become("tributary-worker")


def train() -> NoReturn:
    _become("tributary-train")
