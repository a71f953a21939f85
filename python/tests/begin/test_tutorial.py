"""The first program of docs/torch.md, as its reader runs it: calmly, then killed, stopped and resumed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import forks

ROOT = Path(__file__).resolve().parents[3]
TRIBUTARY = Path(os.environ.get("TRIBUTARY_BIN_DIR", ROOT / "build/release/bin")) / "tributary"


def section() -> str:
    text = (ROOT / "docs/torch.md").read_text(encoding="utf-8")
    return text[text.index("## A first program") : text.index("## What a program writes")]


class Tutorial(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        text = section()
        found = re.search(r"```python\n(.*?)```", text, re.DOTALL)
        assert found
        (self.folder / "train.py").write_text(found.group(1), encoding="utf-8")
        self.commands = [
            line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()
        ]
        self.log = self.folder / "out.log"

    def start(self, command: str) -> subprocess.Popen[bytes]:
        words = command.replace("tributary run", f"{TRIBUTARY} run").replace("python3", sys.executable).split()
        with self.log.open("wb") as out:
            run = subprocess.Popen(
                words,
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        self.addCleanup(self.end, run)
        return run

    def end(self, run: subprocess.Popen[bytes]) -> None:
        if run.poll() is None:
            run.terminate()
            run.wait(60)

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, words: str, run: subprocess.Popen[bytes]) -> str:
        until = time.monotonic() + 120
        while not (found := re.search(words, self.said())):
            self.assertIsNone(run.poll(), self.said())
            self.assertLess(time.monotonic(), until, self.said())
            time.sleep(0.1)
        return found.group(1) if found.groups() else found.group()

    def digest(self) -> str:
        found = re.search(r"digest (\w+)", self.said())
        self.assertIsNotNone(found, self.said())
        assert found
        return found.group(1)

    def test_a_run_that_is_killed_and_stopped_ends_with_the_digest_of_the_calm_one(self) -> None:
        runs = [command for command in self.commands if command.startswith("tributary run")]
        kills = [command for command in self.commands if command.startswith("pkill")]
        self.assertEqual((len(runs), len(kills)), (3, 2))
        calm = self.start(runs[0])
        self.assertEqual(calm.wait(300), 0, self.said())
        digest = self.digest()

        # The reader's pkill would find other runs of this machine, too.
        run = self.start(runs[1])
        trainer = int(self.wait_for(r"worker 1 .*ranks 1 \(pid (\d+)\)", run))
        server = int(self.wait_for(r"server 0 +pid (\d+)", run))
        self.wait_for(r"round \d+", run)
        os.kill(trainer, signal.SIGKILL)
        self.wait_for("trainer of rank 1 was killed", run)
        os.kill(server, signal.SIGKILL)
        self.wait_for(r"server 0 was killed[\s\S]*\nround \d+", run)
        run.send_signal(signal.SIGINT)
        self.assertEqual(run.wait(120), 75, self.said())
        self.assertIn("the same command goes on from there", self.said())

        again = self.start(runs[2])
        self.assertEqual(again.wait(300), 0, self.said())
        self.assertEqual(self.digest(), digest)


class FromDdp(unittest.TestCase):
    """The diff of docs/from-ddp.md: the program before it, and the one after it."""

    def run_program(self, command: list[str], program: str) -> list[float]:
        """Its accuracies."""
        text = (ROOT / "docs/from-ddp.md").read_text(encoding="utf-8")
        found = re.search(r"```diff\n(.*?)```", text, re.DOTALL)
        assert found
        left_out = "+" if program == "before.py" else "-"
        lines = [line[1:] for line in found.group(1).splitlines() if not line.startswith(left_out)]
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / program).write_text("\n".join(lines), encoding="utf-8")
            ended = subprocess.run(
                [*command, program],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=200,
                text=True,
                check=False,
            )
            # Gloo aborts a process now and then when its group is destroyed, after all is done.
            if program == "after.py" or "epoch 4" not in ended.stdout:
                self.assertEqual(ended.returncode, 0, ended.stdout)
            self.assertTrue((Path(folder) / "model.pt").exists())
        return [float(value) for value in re.findall(r"epoch \d: accuracy ([\d.]+)", ended.stdout)]

    def test_both_programs_learn_the_same(self) -> None:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
        run = [str(TRIBUTARY), "run", "--servers", "1", "--nodes", "2", "--fresh", "--", *forks.python()]
        before, after = self.run_program(torchrun, "before.py"), self.run_program(run, "after.py")
        self.assertEqual((len(before), len(after)), (5, 5))
        for one, other in zip(before, after):
            self.assertAlmostEqual(one, other, delta=0.03)
        self.assertGreater(min(before[-1], after[-1]), 0.95)


if __name__ == "__main__":
    unittest.main()
