"""The program ``tributary``, run for what it can do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tributary import _library, _programs
from tributary._errors import Error


def path() -> str:
    """The package's own, the one next to the library, or the one on the PATH.

    Raises:
        tributary.Error: there is none.
    """
    library = Path(_library.find()).resolve()
    for found in (_programs.FOLDER / "tributary", library.parent.parent / "bin" / "tributary"):
        if os.access(found, os.X_OK):
            return str(found)
    on_path = shutil.which("tributary")
    if on_path is None:
        raise Error(f"no program 'tributary' in {_programs.FOLDER}, beside {library} or on the PATH: install the wheel")
    return on_path


def answer(words: Sequence[str]) -> Any:
    """Runs it with words that ask for JSON; the JSON that it prints.

    Raises:
        tributary.Error: what it says on standard error.
    """
    done = subprocess.run([path(), *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Error(done.stderr.strip() or f"tributary {' '.join(words)} ended with status {done.returncode}")
    return json.loads(done.stdout)
