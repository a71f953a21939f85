"""Kills trainers, workers and servers of examples/gpt.py in turns, and compares the bits with a calm run's.

Not a part of `make test`: it takes minutes. With what is built in build/release, or as for the tests.

    python/tests/run.sh "" tables/chaos_gpt.py [KILLS]
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cluster import BIN, PROGRAMS, REPOSITORY, environment, processes_of

KINDS = ("trainer", "worker", "server")
ARGUMENTS = ["--epochs", "2", "--bytes", "262144"]


def command(folder: Path) -> list[str]:
    gpt = str(REPOSITORY / "examples" / "gpt.py")
    run = [str(BIN / "tributary"), "run", "--servers", "2", "--nodes", "2", "--base-dir", str(folder), "--"]
    return [*run, sys.executable, str(PROGRAMS / "digest_of.py"), gpt, *ARGUMENTS]


def processes(kind: str, folder: Path) -> list[int]:
    return processes_of("digest_of.py" if kind == "trainer" else f"tributary-{kind}", folder)


def round_of(folder: Path) -> int:
    """Returns the job's round from the cluster's status; -1: it is not there."""
    status = [str(BIN / "tributary"), "status", "--json", "--base-dir", str(folder)]
    said = subprocess.run(status, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False).stdout
    rounds = []

    def look(value: object) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                if key in ("round", "max_version", "version") and isinstance(inner, int):
                    rounds.append(inner)
                look(inner)
        elif isinstance(value, list):
            for inner in value:
                look(inner)

    with contextlib.suppress(ValueError):
        look(json.loads(said))
    return max(rounds, default=-1)


def digest_in(text: str) -> str:
    return next(line.split()[1] for line in reversed(text.splitlines()) if line.startswith("digest "))


def kill_in_turns(run: subprocess.Popen[str], folder: Path, kills: int) -> list[tuple[str, float]]:
    """Returns the kind of each process killed, and the time until the job was a round past the open one."""
    taken: list[tuple[str, float]] = []
    while round_of(folder) < 1 and run.poll() is None:
        time.sleep(0.1)
    while len(taken) < kills and run.poll() is None:
        kind = KINDS[len(taken) % len(KINDS)]
        pids = processes(kind, folder)
        before = round_of(folder)
        if not pids or before < 0:
            time.sleep(0.1)
            continue
        os.kill(pids[len(taken) // len(KINDS) % len(pids)], signal.SIGKILL)
        killed = time.monotonic()
        while round_of(folder) <= before + 1 and run.poll() is None:
            time.sleep(0.05)
        taken.append((kind, round(time.monotonic() - killed, 2)))
        time.sleep(0.5)
    return taken


def main() -> None:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    with tempfile.TemporaryDirectory() as name:
        began = time.monotonic()
        calm = subprocess.run(
            command(Path(name) / "calm"), env=environment(), stdout=subprocess.PIPE, text=True, check=True
        ).stdout
        calm_s = time.monotonic() - began
        folder = Path(name) / "chaos"
        run = subprocess.Popen(command(folder), env=environment(), stdout=subprocess.PIPE, text=True)
        try:
            taken = kill_in_turns(run, folder, kills)
            said = run.communicate()[0]
        finally:
            run.terminate()
            run.wait()
        if run.returncode:
            logs = sorted((folder / "logs").iterdir())
            last = [f"== {log.name}\n" + "\n".join(log.read_text().splitlines()[-15:]) for log in logs]
            sys.exit(f"after {taken} the run ended with status {run.returncode}:\n{said}\n" + "\n".join(last))
    print(
        json.dumps(
            {
                "kills": len(taken),
                "exit_status": run.returncode,
                "same_digest": digest_in(said) == digest_in(calm),
                "digest": digest_in(said),
                "calm_digest": digest_in(calm),
                "longest_s_without_a_round": {
                    kind: max((s for k, s in taken if k == kind), default=0) for kind in KINDS
                },
                "all_s_without_a_round": taken,
                "calm_s": round(calm_s, 1),
                "chaos_s": round(time.monotonic() - began - calm_s, 1),
            }
        )
    )


if __name__ == "__main__":
    main()
