"""Stops of everything at a random moment, with each encoding: a run continues at the very round that the stop reported.

SIGTERM goes to all servers, workers and ranks, in any order and some milliseconds apart. Each encoding trains one job
with two groups of an AdamW and a rate that the ranks say. They are small programs on the library; with --torch, on
PyTorch. With --lose-nodes a rank is killed just before, so that the servers have the job in memory, between two views:
then they save it, or say that they cannot. Not a part of `make test`: a hundred stops take ten minutes, with --torch
half an hour. With what is built in build/release, or as for the tests.

    python/tests/run.sh "" tables/table_of_stops.py [--stops N] [--seed N] [--torch] [--lose-nodes] [ENCODING]...
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster import Cluster, environment

ENCODINGS = (  # of gradients and parameters
    ("fp32", "fp32"),
    ("bf16", "bf16"),
    ("fp16", "fp16"),
    ("int8", "fp32"),
    ("int8", "int8-delta"),
    ("topk:0.1", "fp32"),
    ("topk:0.1", "int8-delta"),
    ("onebit", "fp32"),
    ("onebit", "int8-delta"),
    ("fp32", "int8-delta"),
)
SERVERS, NODES = 2, 2
ROUND_S = 0.004
STARTING = 0.15  # of all stops come before the first round is made
SPREAD_S = 0.03  # between the first signal and the last
LOST_S = 0.3  # between the loss of a rank and the first signal, at most
PATIENCE_S = 90
STOPPED = 75


class Said:
    """Output of a rank: where it begins, each round, and where it ends, with a digest of the parameters."""

    @staticmethod
    def begins(round: int, digest: str) -> None:
        print("begins", round, digest, flush=True)

    @staticmethod
    def round(round: int) -> None:
        print("round", round, flush=True)
        time.sleep(ROUND_S)

    @staticmethod
    def ends(round: int, digest: str) -> None:
        print("said", round, digest, flush=True)


def torch_rank(push: str, pull: str, snapshot_rounds: int) -> None:
    """Trains with PyTorch until it is stopped."""
    import torch
    from trainer import digest

    import tributary.torch as trib

    torch.set_num_threads(1)
    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(8, 24), torch.nn.Tanh(), torch.nn.Linear(24, 1))
    decayed = [p for p in net.parameters() if p.ndim > 1]
    others = [p for p in net.parameters() if p.ndim == 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    job = {"snapshot": {"every_rounds": snapshot_rounds}} if snapshot_rounds else None
    opt = trib.DistributedOptimizer(
        net, torch.optim.AdamW(groups, lr=0.01), name="stops", push=push, pull=pull, job=job
    )
    rates = torch.optim.lr_scheduler.LambdaLR(opt, rate_of)
    Said.begins(opt.round, digest(net))
    generator = torch.Generator().manual_seed(int(trib.rank()))
    try:
        for _ in trib.rounds(10**9):
            x = torch.randn(4, 8, generator=generator)
            (net(x) - x.sum(1, keepdim=True)).square().mean().backward()
            opt.step()
            rates.step()
            opt.zero_grad()
            Said.round(opt.round)
    except trib.Stopped as stopped:
        Said.ends(stopped.round, digest(net))
        raise


def rate_of(round: int) -> float:
    return 1.0 / (1.0 + 0.01 * round)


class LibraryRank:
    """Trains straight through the library until it is stopped: a process that starts at once."""

    TENSORS = (("weight", 192, 0), ("bias", 24, 1), ("head", 24, 0))  # name, elements, group

    def __init__(self, push: str, pull: str, snapshot_rounds: int) -> None:
        from tributary import _library

        self.library = _library
        self.stops = ctypes.c_int(0)
        self.options = _library.AttachOptions(
            f'[job]\nname = "stops"\n[encoding]\npush = "{push}"\npull = "{pull}"\n'
            + (f"[snapshot]\nevery_rounds = {snapshot_rounds}\n" if snapshot_rounds else "")
            + '[optimizer]\nname = "adamw"\nlr = 0.01\nweight_decay = 0.1\n[[groups]]\nweight_decay = 0.0\n',
            [_library.Tensor(name, (elements,), group=group) for name, elements, group in self.TENSORS],
            recovery=_library.load().recovery(),
            stops=self.stops,
        )
        self.session: Any = None

    def digest(self) -> str:
        whole = hashlib.sha256()
        for tensor in range(len(self.TENSORS)):
            whole.update(bytes(self.session.parameters(tensor)))
        return whole.hexdigest()[:16]

    def attach(self) -> None:
        self.session = self.library.load().attach(self.options)
        for tensor, (_, elements, _) in enumerate(self.TENSORS):
            values = self.session.initial(tensor) if self.session.view().fresh else None
            if values is not None:
                values[:] = [0.01 * (e % 17) for e in range(elements)]
        self.session.start()

    def round(self, round: int) -> Any:
        rank = self.session.view().rank
        for tensor in reversed(range(len(self.TENSORS))):
            gradient, at = self.session.gradient(tensor), self.session.parameters(tensor)
            gradient[:] = [at[e] - 0.1 * ((e + round + rank) % 7) for e in range(len(gradient))]
            self.session.ready(tensor, 1, 0.01 * rate_of(round))
            time.sleep(ROUND_S / 4)  # a stop may come between two tensors of a chunk
        return self.session.wait()

    def view(self) -> bool:
        """Is the job stopped? Else its view was cut."""
        step_of = self.library.Step
        self.attach()
        round = self.session.view().resume_round
        Said.begins(round, self.digest())
        step = step_of.CONTINUE
        while step == step_of.CONTINUE and not self.stops.value:
            step = self.round(round + 1)
            if step in (step_of.CONTINUE, step_of.STOP_REQUESTED):
                round += 1
                Said.round(round)
        if step == step_of.RESTART:
            return False
        digest = self.digest()
        self.session.finish(self.library.Leave.STOPPED, f"rank {self.session.view().rank} was told to stop")
        self.session.saved()
        Said.ends(round, digest)
        return True

    def run(self) -> None:
        """Ends the process."""
        import tributary

        status = STOPPED
        try:
            while not self.stops.value:
                try:
                    if self.view():
                        break
                except tributary.Unavailable:
                    pass
                time.sleep(0.05)
        except tributary.JobStopped:
            pass
        except tributary.Error as error:
            print("not saved:" if isinstance(error, tributary.NotSaved) else "failed:", error, flush=True)
            status = 1
        os._exit(status)

    def run_until_signal(self) -> None:
        # The session's calls are on a thread: this one is free to take signals.
        signal.signal(signal.SIGTERM, lambda *_: setattr(self.stops, "value", 1))
        threading.Thread(target=self.run).start()
        while True:
            time.sleep(3600)


@dataclass
class Ended:
    """Output of the processes of one run."""

    began: tuple[int, str] | None  # round, digest
    said: tuple[int, str] | None
    reached: int  # the last round that rank 0 has seen
    faults: list[str]
    unsaved: bool  # a server has said so


class Dice(random.Random):
    start_s = 2.0  # from the start of the processes to the first round, as it was seen last


def lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines() if path.exists() else []


def said_of(path: Path, word: str) -> list[tuple[int, str]]:
    words = [line.split() for line in lines(path)]
    return [(int(line[1]), line[2]) for line in words if line[:1] == [word] and len(line) == 3]


def start_rank(cluster: Cluster, node: int, out: Path, words: list[str]) -> None:
    variables = environment(
        RANK=str(node),
        WORLD_SIZE=str(NODES),
        LOCAL_RANK="0",
        LOCAL_WORLD_SIZE="1",
        GROUP_RANK=str(node),
        TRIBUTARY_SOCKET=cluster.socket_of(node),
    )
    with open(out, "wb") as file:
        program = [sys.executable, __file__, "--rank", *words]
        cluster.trainers.append(subprocess.Popen(program, env=variables, stdout=file, stderr=file))


def wait_for_moment(cluster: Cluster, out: Path, may_be_starting: bool, dice: Dice) -> None:
    began = time.monotonic()
    if may_be_starting and dice.random() < STARTING:
        return time.sleep(dice.uniform(0.0, dice.start_s))
    while not any(line.startswith("round ") for line in lines(out)):
        if time.monotonic() > began + PATIENCE_S or cluster.trainers[0].poll() is not None:
            raise SystemExit(f"no round is made: {out.read_text()[-2000:]}")
        time.sleep(0.01)
    dice.start_s = time.monotonic() - began
    time.sleep(dice.uniform(0.0, 0.6))


def run_and_stop(folder: Path, run: int, words: list[str], lose: bool, is_last: bool, dice: Dice) -> Ended:
    outs = [folder / f"run-{run}-rank-{node}" for node in range(NODES)]
    faults, unsaved = [], False
    with Cluster(folder, servers=SERVERS, nodes=NODES) as cluster:
        logs = {name: len(lines(folder / f"{name}.log")) for name in cluster.daemons}
        for node, out in enumerate(outs):
            start_rank(cluster, node, out, words)
        wait_for_moment(cluster, outs[0], not is_last, dice)
        if lose:
            cluster.trainers[1].kill()
            time.sleep(dice.uniform(0.0, LOST_S))
        everybody = {**cluster.daemons, **{f"rank {i}": p for i, p in enumerate(cluster.trainers)}}
        names = list(everybody)
        dice.shuffle(names)
        for name in names:
            everybody[name].send_signal(signal.SIGTERM)
            time.sleep(dice.uniform(0, SPREAD_S / len(names)))
        end = time.monotonic() + PATIENCE_S
        for name, process in everybody.items():
            try:
                status = process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                faults.append(f"{name} has not ended after {PATIENCE_S} s")
                continue
            # A process that had not come to where it takes the signal ends by it.
            wanted = (STOPPED if name.startswith("rank") else 0, -signal.SIGTERM)
            says = [line for line in lines(folder / f"{name}.log")[logs.get(name, 0) :] if "not saved: job" in line]
            unsaved |= bool(says)
            if lose and (name == "rank 1" or (status == 1 and says)):
                continue
            if status not in wanted:
                faults.append(f"{name} ended with status {status}: {' '.join(says)}")
    for out in outs:
        faults += [line for line in lines(out) if "not saved:" in line and not lose]
    said = [end for out in outs for end in said_of(out, "said")]
    if len(set(said)) > 1:
        faults.append(f"ranks say {said}")
    reached = [int(line.split()[1]) for line in lines(outs[0]) if line.startswith("round ")]
    began = said_of(outs[0], "begins")
    return Ended(began[0] if began else None, said[0] if said else None, max(reached, default=0), faults, unsaved)


def stops_of(folder: Path, words: list[str], stops: int, lose: bool, dice: Dice) -> tuple[list[str], list[str]]:
    """A row of the table, and what is wrong."""
    last: Ended | None = None
    in_training = again = unsaved = 0
    faults = []
    for run in range(stops + 1):  # the last one shows where the one before it ended
        ended = run_and_stop(folder, run, words, lose and run < stops, run == stops, dice)
        faults += [f"run {run}: {fault}" for fault in ended.faults]
        if ended.began is None:
            continue
        in_training += run < stops
        unsaved += ended.unsaved
        if last is not None:
            # A round may be complete that rank 0 has not seen, if it was lost with the other rank's view.
            good = ended.began == last.said or (lose and last.reached <= ended.began[0] <= last.reached + 1)
            again += good or last.unsaved
            if not good and not last.unsaved:
                faults.append(f"run {run} began at {ended.began}, the one before said {last.said}, had {last.reached}")
        if ended.said is None and not lose:
            faults.append(f"run {run} began and said nothing of its end")
        last = ended
    rounds = max(last.reached, last.began[0]) if last and last.began else 0
    snapshots, push, pull = words[:3]
    row = [
        push,
        pull,
        snapshots.replace("0", "none"),
        str(rounds),
        str(stops),
        str(in_training),
        str(again),
        str(unsaved),
    ]
    return row, faults


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--stops", type=int, default=10, help="of each encoding")
    arguments.add_argument("--seed", type=int, default=5)
    arguments.add_argument("--lose-nodes", action="store_true", help="kill a rank before each stop")
    arguments.add_argument("--torch", action="store_true", help="ranks are PyTorch programs")
    arguments.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    arguments.add_argument("--keep", type=Path, help="folder that the runs are left in")
    arguments.add_argument("encoding", nargs="*", help="of gradients")
    given = arguments.parse_args()
    if given.rank:
        words = (given.encoding[1], given.encoding[2], int(given.encoding[0]))
        return torch_rank(*words) if given.torch else LibraryRank(*words).run_until_signal()
    titles = (
        "gradients",
        "parameters",
        "rounds a snapshot",
        "rounds",
        "stops",
        "with a view",
        "went on there",
        "said unsaved",
    )
    print("| " + " | ".join(titles) + " | faults |")
    print("| --- " * (len(titles) + 1) + "|", flush=True)
    dice, failed = Dice(given.seed), False
    with tempfile.TemporaryDirectory() as name:
        base = given.keep or Path(name)
        for place, (push, pull) in enumerate(ENCODINGS):
            if given.encoding and push not in given.encoding:
                continue
            folder = base / f"{push.replace(':', '-')}-{pull}"
            words = ["7" if place % 2 else "0", push, pull, *(["--torch"] if given.torch else [])]
            row, faults = stops_of(folder, words, given.stops, given.lose_nodes, dice)
            failed |= bool(faults)
            print("| " + " | ".join(row) + " | " + ("; ".join(faults) or "none") + " |", flush=True)
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
