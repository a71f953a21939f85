"""A program on two ranks, a node each: started by ``tributary run``, or by torchrun next to worker daemons."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import forks
from cluster import BIN, Cluster, environment, free_port

RANKS = 2


class Launched:
    """As a context manager: ends all that it began.

    Programs write a line "starts RANK ..." when they start, whose last word is the number of the rank's process.

    Attributes:
        logs: of the ranks' output, one file each or one for all.
    """

    logs: list[Path]

    def __init__(self, folder: Path, command: list[str], **variables: str) -> None:
        self.folder = folder
        self.command = command
        self.variables = variables
        self.processes: list[subprocess.Popen[bytes]] = []

    def _start(self, words: list[str], log: str, **variables: str) -> None:
        with open(self.folder / log, "ab") as output:
            started = subprocess.Popen(
                words,
                env=environment(**self.variables, **variables),
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
            )
        self.processes.append(started)

    def __enter__(self) -> Launched:
        raise NotImplementedError

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        for process in self.processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def text(self) -> str:
        """All that all ranks have written."""
        return "\n".join(log.read_text(errors="replace") for log in self.logs if log.exists())

    def lines(self, first: str) -> list[list[str]]:
        """The other words of the lines that begin with this one, whole lines only."""
        texts = [log.read_text(errors="replace").rpartition("\n")[0] for log in self.logs if log.exists()]
        return [line.split()[1:] for text in texts for line in text.splitlines() if line.startswith(f"{first} ")]

    def wait_for_round(self, round: int, within: float = 120) -> None:
        """Until rank 0 has written a line "round ROUND ..."."""
        deadline = time.monotonic() + within
        while not any(int(words[0]) >= round for words in self.lines("round")):
            ended = any(process.poll() is not None for process in self.processes)
            if ended or time.monotonic() > deadline:
                raise AssertionError(f"round {round} is not there:\n{self.text()}")
            time.sleep(0.02)

    def kill(self, rank: int) -> None:
        """The process that a rank has now."""
        (*_, words) = (words for words in self.lines("starts") if words[0] == str(rank))
        os.kill(int(words[-1]), signal.SIGKILL)

    def wait(self, within: float = 240) -> None:
        """Until all have ended well."""
        deadline = time.monotonic() + within
        for process in self.processes:
            try:
                status = process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"not at an end after {within} s:\n{self.text()}") from None
            if status != 0:
                raise AssertionError(f"status {status}:\n{self.text()}")


class ByRun(Launched):
    name = "tributary run"

    def __enter__(self) -> ByRun:
        base = self.folder / "run"
        self.logs = [base / "logs" / f"trainer-{rank}.{kind}" for rank in range(RANKS) for kind in ("out", "log")]
        self._start(
            [
                *(str(BIN / "tributary"), "run", "--servers", "1", "--nodes", str(RANKS), "--fresh"),
                *("--base-dir", str(base), "--", *forks.python(), *self.command),
            ],
            "run.log",
        )
        return self

    def text(self) -> str:
        return (self.folder / "run.log").read_text() + super().text()


class ByTorchrun(Launched):
    name = "torchrun"

    def __enter__(self) -> ByTorchrun:
        self.cluster = Cluster(self.folder / "daemons", nodes=RANKS)
        self.cluster.__enter__()
        port = str(free_port())
        self.logs = [self.folder / f"torchrun-{node}.log" for node in range(RANKS)]
        for node in range(RANKS):
            self._start(
                [
                    *(sys.executable, "-m", "torch.distributed.run", "--nnodes", str(RANKS), "--nproc-per-node", "1"),
                    *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "test"),
                    *("--max-restarts", "3", "--monitor-interval", "0.1", *self.command),
                ],
                f"torchrun-{node}.log",
                TRIBUTARY_SOCKET=self.cluster.socket_of(node),
                PYTHONUNBUFFERED="1",
                # Else processes that are started again find addresses of those before them.
                TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
            )
        return self

    def __exit__(self, *arguments: object) -> None:
        super().__exit__(*arguments)
        self.cluster.__exit__(*arguments)


LAUNCHERS: list[type[ByRun] | type[ByTorchrun]] = [ByRun, ByTorchrun]
