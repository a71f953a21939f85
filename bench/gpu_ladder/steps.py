"""A step, a rung of steps, and the ladder: it runs them within a budget and keeps everything that they say at once."""

from __future__ import annotations

import gzip
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Optional

from gpu_ladder import machine, processes

Figures = Callable[[str], Optional[Any]]
SPENT = "the budget is spent (--budget)"
KEPT_LINES = 3  # of what a failed step printed, in its reason
KEPT_BYTES = 4 << 20  # of each file in the results; of a longer one its two ends
LOGS = "{logs}"  # in a step's command: a folder whose files go to the results when the step has ended


def last_object(text: str) -> Any | None:
    """The last line that is a JSON object."""
    for line in reversed(text.splitlines()):
        if line.startswith("{") and line.rstrip().endswith("}"):
            try:
                return json.loads(line)
            except ValueError:
                continue
    return None


@dataclass
class Outcome:
    status: str  # passed, failed, skipped
    reason: str = ""  # unless passed
    text: str = ""  # of standard output


# More environment for a step, while it is there; or why the step cannot have it.
Surroundings = tuple[dict[str, str], str]


def as_it_is(_: Path) -> AbstractContextManager[Surroundings]:
    return nullcontext(({}, ""))


def as_it_ended(outcome: Outcome) -> Outcome:
    return outcome


def wanted(_: float) -> str:
    return ""


def say(line: str) -> None:
    with suppress(OSError):  # the terminal may be gone
        print(line, file=sys.stderr, flush=True)


@dataclass
class Step:
    """A program that says whether something works, and perhaps with which figures."""

    name: str
    command: Sequence[str]
    figures: Figures = last_object
    judge: Callable[[Outcome], Outcome] = as_it_ended
    limit_s: float = 60.0
    around: Callable[[Path], AbstractContextManager[Surroundings]] = as_it_is  # takes the folder that LOGS stands for
    needs: str = ""  # a step that must not have failed
    # Why it is not run. Called only if the step is asked for, with the seconds that the budget leaves.
    skipped: Callable[[float], str] = wanted


@dataclass
class Rung:
    name: str
    steps: Callable[[], Iterator[Step]]  # made when the rung is reached


class Results:
    """One tar that grows: a file is whole and readable in it as soon as it was added, whatever ends this process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.unlink(missing_ok=True)

    def add(self, name: str, content: bytes) -> None:
        if len(content) > KEPT_BYTES:
            half, left_out = KEPT_BYTES // 2, len(content) - KEPT_BYTES
            content = content[:half] + f"\n... {left_out} bytes left out ...\n".encode() + content[-half:]
        packed = gzip.compress(content, mtime=0)
        entry = tarfile.TarInfo(name + ".gz")
        entry.size, entry.mtime = len(packed), int(time.time())
        with tarfile.open(self.path, "a") as tar:
            tar.addfile(entry, io.BytesIO(packed))

    def add_folder(self, name: str, folder: Path) -> None:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink() and path.suffix in (".log", ".out", ".txt", ".json", ".toml"):
                try:
                    self.add(f"{name}/{path.relative_to(folder)}", path.read_bytes())
                except OSError as error:
                    self.add(f"{name}/{path.relative_to(folder)}.problem", str(error).encode())


def file_name(step: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", step)


class Ladder:
    """Climbs rungs. `out` gets results.tar, and the page, which `page` makes again as each step begins and ends."""

    def __init__(self, out: Path, until: float, limit_s: float, only: str | None, environment: dict[str, str]) -> None:
        self.out, self.until, self.limit_s, self.only, self.environment = out, until, limit_s, only, environment
        self.page: Callable[[], str] = lambda: ""
        self.results = Results(out / "results.tar")
        self.steps: list[dict[str, Any]] = []
        self.running = ""  # a step's name

    def begin(self) -> None:
        """Before the first rung: the page, and texts about the machine."""
        self.show()
        for name, text in machine.description().items():
            self.results.add(f"machine/{name}", text.encode())

    def show(self) -> None:
        write(self.out / "gpu_check.txt", self.page())

    def count(self, status: str) -> int:
        return sum(step["status"] == status for step in self.steps)

    def climb(self, rung: Rung) -> None:
        """Raises Interrupted after a step that a signal ended, with the step's results."""
        for step in rung.steps():
            self.take(rung.name, step)

    def take(self, rung: str, step: Step) -> None:
        began = time.monotonic()
        left = self.until - began
        if self.only and not re.search(self.only, step.name):
            outcome = Outcome("skipped", "not asked for")
        elif any(said["name"] == step.needs and said["status"] == "failed" for said in self.steps):
            outcome = Outcome("skipped", f"'{step.needs}' failed")
        elif left < 1.0:
            outcome = Outcome("skipped", SPENT)
        else:
            why = step.skipped(left)
            left = self.until - time.monotonic()
            if left < 1.0:
                outcome = Outcome("skipped", SPENT)
            elif why:
                outcome = Outcome("skipped", why)
            else:
                outcome = self.attempt(step, min(step.limit_s, self.limit_s, left))
        self.add(rung, step, outcome, time.monotonic() - began)
        if processes.interrupted():
            raise processes.Interrupted(processes.interrupted())

    def attempt(self, step: Step, limit_s: float) -> Outcome:
        folder = Path(tempfile.mkdtemp(prefix="gpu-check-running-"))
        logs = folder / "logs"
        logs.mkdir()
        try:
            with step.around(logs) as (more, problem):
                if problem:
                    return Outcome("skipped", problem)
                say(f"== {step.name}")
                self.running = step.name
                self.show()
                outcome = step.judge(self.run(step, more, limit_s, folder))
                self.running = ""
                return outcome
        finally:
            self.results.add_folder(f"{file_name(step.name)}/logs", logs)
            shutil.rmtree(folder, ignore_errors=True)

    def add(self, rung: str, step: Step, outcome: Outcome, seconds: float) -> None:
        said: dict[str, Any] = {"rung": rung, "name": step.name, "status": outcome.status, "seconds": round(seconds, 3)}
        if outcome.reason:
            said["reason"] = outcome.reason
        figures = step.figures(outcome.text) if outcome.text else None
        if figures is not None:
            said["figures"] = figures
        self.steps.append(said)
        if outcome.status == "skipped" and not outcome.text:
            return
        reason = outcome.reason.splitlines()[0] if outcome.reason else ""
        say(f"{outcome.status}: {step.name}, {seconds:.1f} s {reason}".rstrip())
        if outcome.status == "failed" and not processes.interrupted():
            with suppress(processes.Interrupted):  # the rest of the step's results is there
                for name, text in machine.aftermath().items():
                    self.results.add(f"{file_name(step.name)}/{name}", text.encode())
        self.results.add(f"{file_name(step.name)}/step.json", json.dumps(said).encode())
        self.show()

    def run(self, step: Step, more: dict[str, str], limit_s: float, folder: Path) -> Outcome:
        """In a process group of its own, so that whatever it started does not outlive its time either."""
        logs, printed, noise = folder / "logs", folder / "printed", folder / "noise"
        command = [word.replace(LOGS, str(logs)) for word in step.command]
        stands = ""
        # Libraries of NVIDIA write there, too.
        own = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": f"{logs}/nccl.%h.%p.log", "PYTHONFAULTHANDLER": "1"}
        with open(printed, "wb") as out, open(noise, "wb") as err:
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    env={**own, **self.environment, **more},
                    start_new_session=True,
                    preexec_fn=processes.end_with_parent,
                )
            except OSError as error:
                return Outcome("failed", f"cannot be started: {error}")
            try:
                with processes.interruptible():
                    status = process.wait(limit_s)
                reason = "" if status == 0 else ended(status)
            except (subprocess.TimeoutExpired, processes.Interrupted) as error:
                late = isinstance(error, subprocess.TimeoutExpired)
                reason = f"took longer than {limit_s:g} s" if late else f"this check was ended by {error}"
                family = processes.descendants(process.pid)
                stands = processes.standing(family)
                processes.abort(family)
                processes.end(process)
        text = printed.read_text(encoding="utf-8", errors="replace")
        both = noise.read_text(encoding="utf-8", errors="replace") + text
        name = file_name(step.name)
        self.results.add(f"{name}/command.txt", (" ".join(command) + "\n").encode())
        self.results.add(f"{name}/printed.txt", text.encode())
        self.results.add(f"{name}/noise.txt", noise.read_bytes())
        if stands:
            self.results.add(f"{name}/threads.txt", stands.encode())
        if not reason:
            return Outcome("passed", "", text)
        said = [line for line in both.splitlines() if line.strip()][-KEPT_LINES:]
        return Outcome("failed", "\n".join([reason + ":", *said]) if said else reason, text)


def ended(status: int) -> str:
    return f"exit status {status}" if status > 0 else f"ended by signal {-status}"


def write(path: Path, text: str) -> None:
    """The whole text or the one before: never a part."""
    aside = path.with_name(path.name + ".new")
    aside.write_text(text, encoding="utf-8")
    aside.replace(path)
