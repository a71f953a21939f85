"""Each loop of loops.py compared with its calm run: losses, rates, samples, digests, when something of it is lost or
stopped.

Not a part of `make test`: it takes minutes (test_loops.py has a part of it). With what is built in build/release, or as
for the tests.

    python/tests/run.sh "" tables/table_of_loops.py [LOOP]...
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import forks
from cluster import BIN, PROGRAMS, environment, processes_of
from loops import LOOPS

HOW = ("calm", "rank", "server", "worker", "Ctrl-C", "SIGTERM to the group")
PATIENCE_S = 120


class Run:
    """A loop under `tributary run`, in a folder."""

    def __init__(self, folder: Path, loop: str, processes: int) -> None:
        self.folder = folder
        self.processes = processes
        self.said = folder / "said"
        self.said.mkdir(parents=True, exist_ok=True)
        run = [str(BIN / "tributary"), "run", "--servers", "2", "--nodes", "2", "--base-dir", str(folder / "run"), "--"]
        self.launcher = run
        self.program = [str(PROGRAMS / "loops.py"), loop]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, python: list[str]) -> None:
        variables = environment(TRIBUTARY_LOOPS=str(self.said), TRIBUTARY_LOOPS_PROCESSES=str(self.processes))
        with open(self.folder / "out", "ab") as out:
            self.process = subprocess.Popen(
                [*self.launcher, *python, *self.program],
                env=variables,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self) -> int:
        assert self.process is not None
        try:
            return self.process.wait(PATIENCE_S)
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()

    def lines(self, rank: int) -> list[str]:
        path = self.said / f"rank-{rank}"
        return path.read_text().splitlines() if path.exists() else []

    def wait_for_round(self, round: int, word: str = "round") -> None:
        end = time.monotonic() + PATIENCE_S
        while not any(line.startswith(f"{word} {round} ") for line in self.lines(0)):
            assert self.process is not None
            assert self.process.poll() is None and time.monotonic() < end, (self.folder / "out").read_text()[-2000:]
            time.sleep(0.005)

    def rounds(self) -> dict[tuple[int, str], list[str]]:
        """Returns each round's reports, by rank and round. The first reported loss counts: a rank that goes through a
        round again has later parameters.
        """
        said: dict[tuple[int, str], list[str]] = {}
        losses: dict[tuple[int, str], str] = {}
        for rank in range(2):
            for line in self.lines(rank):
                word, round, rest = line.split(maxsplit=2)
                rest, _, loss = rest.partition(" loss ")
                lines = said.setdefault((rank, f"{word} {round}"), [])
                loss = losses.setdefault((rank, line.partition(" loss ")[0]), loss)
                if f"{rest} {loss}" not in lines:
                    lines.append(f"{rest} {loss}")
        return said


def end_something(run: Run, how: str, round: int, word: str = "round") -> list[int]:
    """Does it in a round, and starts again what does not by itself. Statuses.

    Args:
        word: of the round's line.
    """
    # A signal to a group goes to a rank's processes, too.
    python = [sys.executable] if how == "SIGTERM to the group" else forks.python()
    run.start(python)
    if how == "calm":
        return [run.wait()]
    run.wait_for_round(round, word)
    if word == "round":
        time.sleep(random.uniform(0, 0.03))
    assert run.process is not None
    if how == "Ctrl-C":
        run.process.send_signal(signal.SIGINT)
    elif how == "SIGTERM to the group":
        os.killpg(run.process.pid, signal.SIGTERM)
    else:
        program = "loops.py" if how == "rank" else f"tributary-{how}"
        # Not those that load data for it: the first of a rank's processes is the rank.
        os.kill(processes_of(program, run.folder)[0], signal.SIGKILL)
        return [run.wait()]
    first = run.wait()
    run.start(python)
    return [first, run.wait()]


def compare(folder: Path, loop: str, processes: int, how: str, round: int, word: str = "round") -> str:
    """ "": as the calm run."""
    calm, other = (
        Run(folder / f"{loop}-{processes}-calm", loop, processes),
        Run(folder / f"{loop}-{processes}-{how.replace(' ', '-')}-{word}-{round}", loop, processes),
    )
    if not calm.rounds():
        end_something(calm, "calm", 0)
    statuses = end_something(other, how, round, word)
    wanted = [75, 0] if how in ("Ctrl-C", "SIGTERM to the group") else [0]
    if statuses != wanted:
        return f"status {statuses}: {(other.folder / 'out').read_text()[-600:]}"
    one, two = calm.rounds(), other.rounds()
    different = [key for key in one if one[key] != two.get(key)]
    if different or set(one) != set(two):
        key = different[0] if different else next(iter(set(two) - set(one)))
        return f"{len(different)} differ, first {key}: {one.get(key)} and {two.get(key)}"
    return ""


def main() -> None:
    wanted = sys.argv[1:] or [loop.__name__ for loop in LOOPS]
    random.seed(5)
    print("| loop | DataLoader processes | " + " | ".join(HOW[1:]) + " |")
    print("| --- | --- | " + " | ".join("---" for _ in HOW[1:]) + " |")
    failed = False
    with tempfile.TemporaryDirectory() as name:
        for loop in wanted:
            # Without a snapshot a lost server sends the job to its beginning. A loop that counts epochs itself does not
            # do again what it did at an epoch's end: it is in its first one.
            last = {"diloco": 5, "per_epoch": 9, "no_sync": 14, "accumulate": 14}.get(loop, 28)
            for processes in (0, 2):
                cells = []
                for how in HOW[1:]:
                    difference = compare(Path(name), loop, processes, how, random.randint(2, last))
                    cells.append(difference.replace("\n", " / ") or "as calm")
                    failed = failed or bool(difference)
                print(f"| {loop} | {processes} | " + " | ".join(cells) + " |", flush=True)
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
