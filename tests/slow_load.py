"""A shard loads from a throttled disk, while another job with a gate on the same server goes on, and ranks that are
started apart attach.

    python3 tests/slow_load.py PROGRAMS LIBRARY [--gigabytes 4] [--rate 50] [--apart 60]

PROGRAMS: the folder of the daemons' programs. LIBRARY: libtributary.so. It needs root: the server's process is put into
a cgroup that bounds what it reads. It prints a JSON object and ends with 1 if an attach failed, or if the other job
stood still.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))

from tributary._library import AttachOptions, Leave, Library, Step, Tensor

STATE_BYTES = 12  # a parameter with AdamW's state
TENSOR = 1 << 24  # elements
COMPUTE_S = 0.01  # of a round
SERVER = """
[server]
coordinator = "ipc://{folder}/coordinator"
lanes = 2
admin = "127.0.0.1:0"
[store]
path = "{folder}/store"
io_mb_per_s = 100000
"""
WORKER = """
[worker]
coordinator = "ipc://{folder}/coordinator"
name = "{name}"
socket = "{folder}/{name}.sock"
lanes = 1
admin = ""
"""


def tensors_of(elements: int) -> list[Tensor]:
    sizes = [min(TENSOR, elements - begin) for begin in range(0, elements, TENSOR)]
    return [Tensor(f"t{index}", (size,)) for index, size in enumerate(sizes)]


def train(arguments: argparse.Namespace) -> None:
    """A rank, as a process of its own. Tells in lines of JSON when it attached and, each second, how many rounds it has
    made."""
    job: dict[str, Any] = {"job": {"name": arguments.job}, "optimizer": {"name": "adamw", "lr": 0.001}}
    if arguments.job == "gated":
        job["gate"] = {"clip_norm": 1.0}
    tensors = tensors_of(arguments.elements)
    began = time.monotonic()
    session = Library(arguments.library).attach(
        AttachOptions(
            job=json.dumps(job),
            tensors=tensors,
            socket=arguments.socket,
            topology=(arguments.rank, arguments.ranks, arguments.rank, arguments.ranks, 0),
            note=lambda text: print(json.dumps({"note": text}), flush=True),
        )
    )
    print(json.dumps({"attached_s": round(time.monotonic() - began, 1)}), flush=True)
    session.start()
    made, told = 0, time.monotonic()
    while arguments.rounds == 0 or made < arguments.rounds:
        for index in range(len(tensors)):
            session.ready(index, 1)
        if session.wait() != Step.CONTINUE:
            print(json.dumps({"ended": session.stop_reason()}), flush=True)
            return
        made += 1
        time.sleep(COMPUTE_S)
        if arguments.rounds == 0 and time.monotonic() > told + 1.0:
            told += 1.0
            print(json.dumps({"at": time.time(), "rounds": made}), flush=True)
    session.finish(Leave.STOPPED)
    session.saved()


class Rank:
    """A process that trains, and what it says."""

    def __init__(self, folder: pathlib.Path, library: str, job: str, socket: str, **options: int) -> None:
        self.output = folder / f"{job}-{options.get('rank', 0)}-{time.time_ns()}.jsonl"
        words = [f"--{name}={value}" for name, value in options.items()]
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, __file__, "train", library, f"--job={job}", f"--socket={socket}", *words],
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def lines(self) -> list[dict[str, Any]]:
        said = []
        for line in self.output.read_text().splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                said.append(json.loads(line))
        return said

    def first(self, key: str) -> Any:
        return next((line[key] for line in self.lines() if key in line), None)


class Throttle:
    """A cgroup whose processes read no faster from the disk that `folder` is on."""

    def __init__(self, folder: pathlib.Path, bytes_per_s: int) -> None:
        device = os.stat(folder).st_dev
        disk = pathlib.Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
        if (disk / "partition").exists():
            disk = disk.parent
        number = (disk / "dev").read_text().strip()
        version_1 = pathlib.Path("/sys/fs/cgroup/blkio")
        self.group = (version_1 if version_1.exists() else pathlib.Path("/sys/fs/cgroup")) / f"slow-load-{os.getpid()}"
        self.group.mkdir()
        if version_1.exists():
            (self.group / "blkio.throttle.read_bps_device").write_text(f"{number} {bytes_per_s}")
        else:
            (self.group / "io.max").write_text(f"{number} rbps={bytes_per_s}")

    def add(self, pid: int) -> None:
        (self.group / "cgroup.procs").write_text(str(pid))

    def remove(self) -> None:
        self.group.rmdir()


def daemon(programs: pathlib.Path, folder: pathlib.Path, name: str, config: str) -> subprocess.Popen[str]:
    (folder / f"{name}.toml").write_text(config)
    program = programs / ("tributary-server" if "[server]" in config else "tributary-worker")
    with (folder / f"{name}.log").open("w") as log:
        process = subprocess.Popen(
            [str(program), "--config", str(folder / f"{name}.toml")], stdout=subprocess.PIPE, stderr=log, text=True
        )
    assert process.stdout is not None
    if not any(line.startswith("ready ") for line in process.stdout):
        raise RuntimeError(f"{name} has ended: {(folder / f'{name}.log').read_text()}")
    return process


def pace(gated: Rank, since: float, until: float) -> dict[str, float]:
    """Rounds that were made in each second of that time."""
    told = [(line["at"], line["rounds"]) for line in gated.lines() if "at" in line and since <= line["at"] <= until]
    rates = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in zip(told, told[1:])]
    gaps = [b[0] - a[0] for a, b in zip(told, told[1:])]
    return {
        "rounds_per_s": round(sum(rates) / max(len(rates), 1), 1),
        "slowest_second": round(min(rates, default=0.0), 1),
        "longest_silence_s": round(max(gaps, default=until - since), 1),
    }


def show(arguments: argparse.Namespace, folder: pathlib.Path) -> dict[str, Any]:
    elements = int(arguments.gigabytes * 1e9 / STATE_BYTES)
    programs = pathlib.Path(arguments.programs).resolve()
    library = str(pathlib.Path(arguments.library).resolve())
    daemons = [daemon(programs, folder, "server", SERVER.format(folder=folder))]
    throttle = Throttle(folder, int(arguments.rate * 1e6))
    try:
        for name in ("large", "gated"):
            daemons.append(daemon(programs, folder, name, WORKER.format(folder=folder, name=name)))

        def large(rank: int) -> Rank:
            socket = str(folder / "large.sock")
            return Rank(folder, library, "large", socket, rank=rank, ranks=2, elements=elements, rounds=1)

        gated = Rank(
            folder, library, "gated", str(folder / "gated.sock"), rank=0, ranks=1, elements=1_000_000, rounds=0
        )
        if any(rank.process.wait() for rank in [large(0), large(1)]):
            raise RuntimeError(f"the first training failed: see {folder}")
        quiet = time.time()
        time.sleep(10)
        throttle.add(daemons[0].pid)
        began = time.time()
        ranks = [large(0)]
        time.sleep(arguments.apart)
        ranks.append(large(1))
        second = time.time()
        while any(rank.first("attached_s") is None and rank.process.poll() is None for rank in ranks):
            time.sleep(0.5)
        there = time.time()
        status = [rank.process.wait() for rank in ranks]
        loaded = [line for line in (folder / "server.log").read_text().splitlines() if "loaded round" in line]
        found = {
            "gigabytes": arguments.gigabytes,
            "disk_mb_per_s": arguments.rate,
            "attached_s": [rank.first("attached_s") for rank in ranks],
            "last_notes": [[line["note"] for line in rank.lines() if "note" in line][-1:] for rank in ranks],
            "ranks_ended_with": status,
            "server": loaded[-1:],
            "gated_before": pace(gated, quiet, began),
            "gated_while_it_loads": pace(gated, second, there),
        }
        gated.process.terminate()
        gated.process.wait()
        return found
    finally:
        for process in reversed(daemons):
            process.terminate()
        for process in daemons:
            process.communicate()
        throttle.remove()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs")
    parser.add_argument("library")
    parser.add_argument("--gigabytes", type=float, default=4.0, help="of state, parameters with AdamW's")
    parser.add_argument("--rate", type=float, default=50.0, help="MB/s that the server may read")
    parser.add_argument("--apart", type=float, default=60.0, help="seconds between the starts of the two ranks")
    arguments = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="slow-load-"))
    found = show(arguments, folder)
    print(json.dumps(found, indent=2))
    fine = found["ranks_ended_with"] == [0, 0] and found["gated_while_it_loads"]["longest_silence_s"] < 10
    if fine:
        shutil.rmtree(folder)
    else:
        print(f"logs are in {folder}", file=sys.stderr)
    return 0 if fine else 1


def rank_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("train")
    parser.add_argument("library")
    parser.add_argument("--job")
    parser.add_argument("--socket")
    for name in ("rank", "ranks", "elements", "rounds"):
        parser.add_argument(f"--{name}", type=int)
    return parser.parse_args()


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:
        train(rank_arguments())
    else:
        sys.exit(main())
