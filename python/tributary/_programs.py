"""The programs that a wheel carries: each console script becomes the program of its name."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

FOLDER = Path(__file__).resolve().parent / "bin"


def main() -> NoReturn:
    """Runs the program that this script is called as, in place of the interpreter."""
    name = Path(sys.argv[0]).name
    program = FOLDER / name
    if not os.access(program, os.X_OK):
        sys.exit(f"{name}: this installation has no {program}; install the wheel that `make wheel` makes")
    os.execv(program, [str(program), *sys.argv[1:]])
