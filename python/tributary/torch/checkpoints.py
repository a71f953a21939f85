"""Checkpoints of a whole job, ordered by its program: parameters, the servers' optimizer state, and what ranks keep.

The orders are those of the program ``tributary checkpoint``.
"""

from __future__ import annotations

import json
import os
import threading
from concurrent.futures import Future
from pathlib import Path

from tributary import _tool
from tributary._errors import Error
from tributary.torch._run.program import program, rank

# Named by `tributary run`: the folder of its cluster. Elsewhere: the admin port of server 0, as HOST:PORT.
BASE_DIR, ADMIN = "TRIBUTARY_BASE_DIR", "TRIBUTARY_ADMIN"


def save_checkpoint(directory: str | os.PathLike[str]) -> Future[str | None]:
    """Orders a checkpoint of this program's job, of a round that comes soon. Training continues meanwhile.

    Rank 0 orders it; on other ranks this does nothing. Servers write it: each of them needs the folder under this path.
    The program's end waits for it. ``tributary run`` says which cluster; elsewhere ``TRIBUTARY_ADMIN`` in the
    environment names server 0's admin port (``HOST:PORT``), and ``TRIBUTARY_ADMIN_TOKEN`` the file with its token.

    Args:
        directory: that the checkpoint's folder, ``JOB-round-N``, is made in.

    Returns:
        Its result is the checkpoint's path; None on other ranks. It raises :class:`tributary.Error`, in the words of
        ``tributary checkpoint save``.

    Raises:
        tributary.Error: there is no open job, no cluster is named, or there is no program ``tributary``.
    """
    link = program.link
    if link is None or link.closed:
        raise Error("save_checkpoint(): there is no open job: make the DistributedOptimizer before")
    saved: Future[str | None] = Future()
    if rank() != 0:
        saved.set_result(None)
        return saved
    words = ["checkpoint", "save", link.name, "--dir", os.path.abspath(directory), "--json"]
    words = [*words, *_cluster("--coordinator-admin")]

    def wait() -> None:
        try:
            saved.set_result(str(_tool.answer(words)["path"]))
        except Exception as error:
            saved.set_exception(error)

    # Not of a pool: the interpreter waits for those before the job is left, and without more rounds forever.
    thread = threading.Thread(target=wait, name="tributary-checkpoint", daemon=True)
    thread.start()
    program.awaits.append(thread)
    return saved


def load_checkpoint(checkpoint: str | os.PathLike[str]) -> bool:
    """Before the optimizer is made: its job begins with a checkpoint's state, unless the cluster has that job already.

    Rank 0 orders it; on other ranks this does nothing, and their attach waits for rank 0's. A program that is started
    again calls it again, and continues where the job is.

    Args:
        checkpoint: its folder, under the path that servers see. It says the job's name.

    Returns:
        Whether it was loaded; False on other ranks.

    Raises:
        ValueError: it is no checkpoint.
        tributary.Error: no cluster is named, or what ``tributary checkpoint restore`` says.
    """
    if rank() != 0:
        return False
    path = Path(os.path.abspath(checkpoint))
    try:
        name = json.loads((path / "manifest.json").read_bytes())["name"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"load_checkpoint({str(checkpoint)!r}): no checkpoint is there: {error}") from None
    known = _tool.answer(["status", "--json", *_cluster("--admin")])
    for daemon in known["daemons"]:
        for job in daemon.get("status", {}).get("coordinator", {}).get("jobs", []):
            if job["name"] == name and (job["committed"] or job["min_version"]):
                return False
    _tool.answer(["checkpoint", "restore", str(path), "--json", *_cluster("--coordinator-admin")])
    return True


def _cluster(option: str) -> list[str]:
    if address := os.environ.get(ADMIN):
        return [option, address]
    if folder := os.environ.get(BASE_DIR):
        return ["--base-dir", folder]
    raise Error(
        f"which cluster? `tributary run` says so; elsewhere set {ADMIN} to the admin address of server 0 (HOST:PORT), "
        "and TRIBUTARY_ADMIN_TOKEN to the file with its token"
    )
