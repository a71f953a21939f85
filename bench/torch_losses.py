#!/usr/bin/env python3
"""Loses a process while PyTorch's GPT trains on this machine's GPU, or on its processors where it has none.

    bench/torch_losses.py [--kill server] [--bytes 131072] [--bin FOLDER] [--base-dir FOLDER]

Runs examples/gpt.py with `tributary run` on two servers and two nodes. After some rounds one process gets SIGKILL:
server 0, which has the coordinator; worker 1; or the trainer of rank 1. `tributary run` starts it again. With the same
--bytes every run ends with one digest, whatever is killed. Prints one JSON object:
  killed       null: nothing
  digest       of the parameters
  rounds       of the job
  gradients    "device" if all gradients went over memory of the GPU
  at_round     rank 0's last round before the kill
  next_step_s  from the kill to rank 0's first step after it attached again
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from torch_step import REPOSITORY, daemon_options, use_library_of

RANK = Path(__file__).with_name("gpt_rank.py")
SERVERS, NODES = 2, 2
KILL_AFTER = 20  # rounds
VICTIMS = {"server": "server 0", "worker": "worker 1", "trainer": "trainer 1"}


class Training:
    """One run of the example, with its files in a folder."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self.folder = folder
        self.killed = VICTIMS.get(args.kill)
        command = [str(args.bin / "tributary"), "run", "--base-dir", str(folder / "run"), "--json"]
        command += ["--servers", str(SERVERS), "--nodes", str(NODES), *daemon_options(args), "--"]
        command += [sys.executable, str(RANK), str(folder), "--epochs", "1", "--bytes", str(args.bytes)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with open(folder / "output.out", "wb") as output, open(folder / "run.json", "wb") as result:
            self.process = subprocess.Popen(command, env=environment, stdout=result, stderr=output)

    def rounds(self, rank: int) -> list[dict[str, Any]]:
        """The rounds that a rank has completed so far."""
        path = self.folder / f"rounds-{rank}.txt"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def kill(self) -> int | None:
        """Kills the victim when it is time, and returns that time."""
        while self.process.poll() is None:
            first, last = self.rounds(0), self.rounds(NODES - 1)
            if first and last and first[-1]["round"] >= KILL_AFTER:
                os.kill(self.pid(last[-1]["pid"]), signal.SIGKILL)
                return time.monotonic_ns()
            time.sleep(0.005)
        return None

    def pid(self, trainer: int) -> int:
        cluster = json.loads((self.folder / "run" / "cluster.json").read_text())
        daemons = {daemon["name"]: daemon["pid"] for daemon in cluster["servers"] + cluster["workers"]}
        return int(daemons.get(self.killed, trainer))

    def figures(self) -> dict[str, Any]:
        """Raises:
        SystemExit: the run failed, or lost other processes than it should.
        """
        killed_ns = self.kill() if self.killed else None
        status = self.process.wait()
        output = (self.folder / "output.out").read_text(errors="replace")
        if status:
            sys.exit(f"tributary run ended with {status}, {self.killed or 'nothing'} killed:\n{output}")
        result = json.loads((self.folder / "run.json").read_text())
        if self.killed and killed_ns is None:
            sys.exit(f"the run ended before {self.killed} was killed; give it more --bytes")
        if result["restarts"] != (1 if self.killed else 0):
            sys.exit(f"{result['restarts']} processes were started again, {self.killed or 'nothing'} killed:\n{output}")
        paths = {line["gradients"] for rank in range(NODES) for line in self.rounds(rank)}
        said = {"killed": self.killed, "digest": result["digest"], "rounds": result["rounds"]}
        said["gradients"] = " and ".join(sorted(paths))
        if killed_ns is not None:
            before = [line for line in self.rounds(0) if line["ns"] <= killed_ns]
            after = [line["ns"] for line in self.rounds(0) if line["attached"] > before[-1]["attached"]]
            if not after:
                sys.exit(f"{self.killed} was killed, and rank 0 made no step after it attached again:\n{output}")
            said["at_round"] = before[-1]["round"]
            said["next_step_s"] = round(1e-9 * (after[0] - killed_ns), 3)
        return said


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kill", choices=tuple(VICTIMS), help="the process to lose (default: none)")
    parser.add_argument("--bytes", type=int, default=1 << 17, help="of the text that the GPT learns")
    parser.add_argument("--bin", type=Path, default=REPOSITORY / "build/release/bin", help="folder of the programs")
    parser.add_argument(
        "--base-dir", type=Path, help="an existing folder that keeps output and daemons' logs (default: keep nothing)"
    )
    args = parser.parse_args()
    use_library_of(args.bin)
    with tempfile.TemporaryDirectory() as scratch:
        print(json.dumps(Training(args, args.base_dir or Path(scratch)).figures()))


if __name__ == "__main__":
    main()
