"""Errors where torch is missing, broken or too old: in a process of its own, with a torch of the test's."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PACKAGE = Path(__file__).absolute().parents[2]


def said_with(torch: str | None) -> str:
    """The last line of an import of tributary.torch. torch: the text of a module of that name; None: there is none."""
    with tempfile.TemporaryDirectory() as folder:
        if torch is not None:
            Path(folder, "torch.py").write_text(torch)
        environment = {**os.environ, "PYTHONPATH": f"{folder}:{PACKAGE}"}
        # Without site-packages, where the real one is.
        command = [sys.executable, "-S", "-c", "import tributary.torch"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 1, done
    return done.stderr.splitlines()[-1]


class Needs(unittest.TestCase):
    def said(self, torch: str | None) -> str:
        line = said_with(torch)
        self.assertRegex(line, r"^ImportError: tributary\.torch needs torch 2\.1 or newer, and ")
        self.assertIn("`pip install torch numpy`", line)
        self.assertIn("make a virtual environment first: `python3 -m venv ", line)
        return line

    def test_none(self) -> None:
        self.assertRegex(
            self.said(None), r", and this Python \(/\S+, 3\.\d+\.\S+\) has none: No module named 'torch'\. "
        )

    def test_one_that_cannot_be_imported(self) -> None:
        line = self.said("import a_part_of_torch")
        self.assertIn(" cannot be imported: No module named 'a_part_of_torch'. ", line)
        self.assertIn(
            " cannot be imported: libgone.so.1: no such file. ",
            self.said("raise ImportError('libgone.so.1: no such file')"),
        )

    def test_one_that_is_too_old(self) -> None:
        self.assertIn("torch.py is torch 2.0.1+cpu. ", self.said("__version__ = '2.0.1+cpu'"))
        self.assertIn("torch.py is torch without a version. ", self.said(""))


if __name__ == "__main__":
    unittest.main()
