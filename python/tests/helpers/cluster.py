"""Real daemons on loopback, and programs as their trainers.

TRIBUTARY_BIN_DIR names the folder of the programs, TRIBUTARY_LIBRARY the library; else both are those of
TRIBUTARY_BUILD, a build tree, by default build/release.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import forks

TESTS = Path(__file__).resolve().parents[1]
PROGRAMS = TESTS / "programs"  # the files that tests start as ranks
REPOSITORY = TESTS.parents[1]
BUILD = Path(os.environ.get("TRIBUTARY_BUILD", REPOSITORY / "build" / "release"))
BIN = Path(os.environ.get("TRIBUTARY_BIN_DIR", BUILD / "bin"))
LIBRARY = Path(os.environ.get("TRIBUTARY_LIBRARY", BUILD / "lib" / "libtributary.so.1"))

QUICK_START = TESTS / "quick_start"  # torch starts in half of its time
PYTHONPATH = f"{REPOSITORY / 'python'}:{QUICK_START}:{TESTS / 'helpers'}:{PROGRAMS}"  # of programs


def not_built() -> str:
    """Names the missing programs; empty: none."""
    missing = [str(path) for path in (BIN / "tributary-server", BIN / "tributary-worker", LIBRARY) if not path.exists()]
    return f"not built: {', '.join(missing)}" if missing else ""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(**more: str) -> dict[str, str]:
    """Environment of a program that trains: this process', with the package and the library of this tree."""
    return {
        **os.environ,
        "PYTHONPATH": PYTHONPATH,
        "TRIBUTARY_LIBRARY": str(LIBRARY),
        "OMP_NUM_THREADS": "1",
        **more,
    }


def outputs_of_ranks(
    words: list[Any], ranks: int, timeout: float, stderr: int | None = subprocess.STDOUT
) -> list[tuple[str, int]]:
    """Output of each rank of a Python file that meets over a process group of torch's, and its exit status."""
    port = str(free_port())
    processes = [
        subprocess.Popen(
            [*forks.python(), *words],
            env=environment(RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=port),
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        return [(process.communicate(timeout=timeout)[0], process.returncode) for process in processes]
    finally:
        for process in processes:
            process.kill()


def processes_of(program: str, folder: Path) -> list[int]:
    """Daemons of that name with files in the folder, or ranks of a run there whose script that is; by number."""
    name, where = program.encode(), str(folder).encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            variables = (entry / "environ").read_bytes()
        except OSError:
            continue
        daemon = words[0].endswith(name) and any(where in word for word in words)
        runs = any(word.endswith(name) for word in words)
        if daemon or (runs and b"TRIBUTARY_RANK=" in variables and where in variables):
            found.append(int(entry.name))
    return sorted(found)


class Cluster:
    """Daemons with their files in a folder, as a context manager: it ends what it began."""

    def __init__(self, folder: Path, servers: int = 1, nodes: int = 1, store: bool = True) -> None:
        self.folder = folder
        self.servers = servers
        self.nodes = nodes
        self.store = store
        self.coordinator = f"ipc://{folder}/coordinator"
        self.admin = f"127.0.0.1:{free_port()}"
        self.token = Path()  # file with the token of server 0's admin port
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.trainers: list[forks.Forked] = []

    def __enter__(self) -> Cluster:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.token = self.folder / "admin.token"
        self.token.write_text("t" * 40)
        self.token.chmod(0o600)
        for index in range(self.servers):
            self.start_server(index)
        for node in range(self.nodes):
            self.start_worker(node)
        return self

    def __exit__(self, *_: object) -> None:
        for process in [*self.trainers, *self.daemons.values()]:
            if process.poll() is None:
                process.kill()
                process.wait()

    def _start(self, name: str, program: str, config: str) -> None:
        path = self.folder / f"{name}.toml"
        path.write_text(config)
        with open(self.folder / f"{name}.log", "ab") as log:
            self.daemons[name] = subprocess.Popen(
                [BIN / program, "--config", path], stdout=log, stderr=subprocess.STDOUT
            )

    def start_server(self, index: int) -> None:
        store = f'[store]\npath = "{self.folder}/store-{index}"\n' if self.store else ""
        admin = self.admin if index == 0 else "127.0.0.1:0"
        self._start(
            f"server-{index}",
            "tributary-server",
            f'[server]\nindex = {index}\nservers = {self.servers}\ncoordinator = "{self.coordinator}"\n'
            f'admin = "{admin}"\nlanes = 1\n'
            f'[limits]\nheartbeat_ms = 200\npeer_timeout_ms = 3000\n{store}[security]\nadmin_token = "{self.token}"\n',
        )

    def start_worker(self, node: int) -> None:
        self._start(
            f"worker-{node}",
            "tributary-worker",
            f'[worker]\ncoordinator = "{self.coordinator}"\nname = "node-{node}"\n'
            f'socket = "{self.socket_of(node)}"\nlanes = 1\n'
            f"[limits]\nheartbeat_ms = 200\npeer_timeout_ms = 3000\n",
        )

    def kill(self, name: str) -> None:
        self.daemons[name].kill()
        self.daemons[name].wait()

    def socket_of(self, node: int) -> str:
        return str(self.folder / f"worker-{node}.sock")

    def start_rank(self, arguments: list[str], rank: int = 0, ranks_per_node: int = 1, **more: str) -> forks.Forked:
        """A Python program as one rank. Its output goes to rank-N.log."""
        node, local = divmod(rank, ranks_per_node)
        variables = environment(
            TRIBUTARY_SOCKET=self.socket_of(node),
            RANK=str(rank),
            WORLD_SIZE=str(self.nodes * ranks_per_node),
            LOCAL_RANK=str(local),
            LOCAL_WORLD_SIZE=str(ranks_per_node),
            GROUP_RANK=str(node),
        )
        variables.update(more)
        with open(self.folder / f"rank-{rank}.log", "ab") as log:
            process = forks.start(arguments, variables, log.fileno())
        self.trainers.append(process)
        return process

    def wait_for_round(self, rank: int, name: str, round: int) -> None:
        """Waits for a round of a program that writes lines "round NAME ROUND" (``trainer.py`` with a pause)."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            whole = self.log_of(rank).rpartition("\n")[0]  # the last line may be a part of one
            rounds = [line for line in whole.splitlines() if line.startswith(f"round {name} ")]
            if rounds and int(rounds[-1].split()[-1]) >= round:
                return
            time.sleep(0.02)
        raise AssertionError(f"rank {rank} did not come to round {round}:\n{self.log_of(rank)}")

    def wait_for(self, rank: int, text: str) -> None:
        """Until a rank has written it."""
        deadline = time.monotonic() + 60
        while text not in self.log_of(rank):
            assert time.monotonic() < deadline, f"rank {rank} does not say '{text}':\n{self.log_of(rank)}"
            time.sleep(0.02)

    def log_of(self, rank: int) -> str:
        return (self.folder / f"rank-{rank}.log").read_text()

    def run(self, arguments: list[str], ranks_per_node: int = 1, timeout: float = 120, **more: str) -> list[str]:
        """Runs a program as all ranks; returns what each wrote. Fails if one fails."""
        ranks = range(self.nodes * ranks_per_node)
        for rank in ranks:
            (self.folder / f"rank-{rank}.log").unlink(missing_ok=True)
        processes = [self.start_rank(arguments, rank, ranks_per_node, **more) for rank in ranks]
        wait_all(processes, timeout)
        logs = [self.log_of(rank) for rank in ranks]
        for rank, process in enumerate(processes):
            assert process.returncode == 0, f"rank {rank} ended with {process.returncode}:\n{logs[rank]}"
        return logs


def wait_all(processes: list[forks.Forked], timeout: float) -> None:
    """Until all have ended; one that failed ends the others."""
    deadline = time.monotonic() + timeout
    while None in [process.poll() for process in processes]:  # all are asked, so that each one's end is seen
        if time.monotonic() > deadline or any(process.returncode not in (None, 0) for process in processes):
            time.sleep(1)
            for process in processes:
                if process.poll() is None:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
            return
        time.sleep(0.02)


def value_of(log: str, key: str, name: str) -> str:
    """Returns the VALUE of the last line "KEY NAME VALUE"."""
    values = [line.split(" ", 2)[2] for line in log.splitlines() if line.startswith(f"{key} {name} ")]
    assert values, f"no line '{key} {name} ...' in:\n{log}"
    return values[-1]
