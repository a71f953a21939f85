"""A step's processes: where they stand, and their end; and signals that ask this program to end."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

GRACE_S = 5.0  # for a step that is to end
SPEAK_S = 3.0  # for processes that were aborted, to say where their threads were
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PR_SET_PDEATHSIG = 1


class Interrupted(Exception):
    """A signal asked this program to end."""


class _Asked:
    by = ""  # the first such signal's name
    waits = False  # where the next one raises Interrupted


def interrupted() -> str:
    """The name of the signal that asked this program to end; empty: none did."""
    return _Asked.by


def heed_signals() -> None:
    """From now on signals interrupt only waits (`interruptible`), so that no file is left half written."""

    def note(number: int, _: Any) -> None:
        raises, _Asked.waits = _Asked.waits, False
        _Asked.by = _Asked.by or signal.Signals(number).name
        if raises:
            raise Interrupted(_Asked.by)

    for number in ENDING:
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup's, for one
            signal.signal(number, note)


@contextmanager
def interruptible() -> Iterator[None]:
    """Raises Interrupted as soon as a signal asks for the end, also if one did before."""
    _Asked.waits = True
    try:
        if _Asked.by:
            raise Interrupted(_Asked.by)
        yield
    finally:
        _Asked.waits = False


_libc = ctypes.CDLL(None)  # not loaded between fork and exec


def end_with_parent() -> None:
    """Asks the kernel to end this process when its parent was killed. Called between fork and exec."""
    _libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)


def descendants(root: int) -> list[int]:
    """Processes that `root` started and they in turn, children first; `root` itself is the last."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with suppress(OSError, ValueError):
            # The name, in brackets, may have spaces and brackets of its own.
            parent = int(Path("/proc", entry, "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry))
    order = [root]
    for process in order:
        order.extend(children.get(process, []))
    return order[::-1]


def _said(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError as error:
        return str(error.strerror)


def standing(processes: list[int]) -> str:
    """Each thread's name, state, and the place in the kernel where it waits."""
    lines = []
    for process in processes:
        folder = Path("/proc", str(process))
        command = _said(folder / "cmdline").replace("\0", " ")
        lines.append(f"process {process}: {command}")
        with suppress(OSError):
            for task in sorted((folder / "task").iterdir()):
                state = _said(task / "stat").rpartition(")")[2].split()[:1]
                lines.append(f"  thread {task.name} ({_said(task / 'comm')}): {''.join(state)} {_said(task / 'wchan')}")
                lines += ["    " + place for place in _said(task / "stack").splitlines()]
    return "\n".join(lines) + "\n"


def abort(processes: list[int]) -> None:
    """Lets each process say where its threads are: our daemons, Python with faulthandler and doctest do on SIGABRT."""
    for process in processes:
        with suppress(OSError):
            os.kill(process, signal.SIGABRT)
    until = time.monotonic() + SPEAK_S
    while time.monotonic() < until and any(_alive(process) for process in processes):
        time.sleep(0.05)


def _alive(process: int) -> bool:
    return (
        Path("/proc", str(process)).exists()
        and _said(Path("/proc", str(process), "stat")).rpartition(")")[2][1:2] != "Z"
    )


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a step that leads a process group, and what it started and did not end."""
    others = descendants(process.pid)[:-1]
    for number, patience in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, None)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience)
            break
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for other in others:
        with suppress(OSError):
            os.kill(other, signal.SIGKILL)
