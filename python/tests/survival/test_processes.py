"""Ranks that have processes of their own, which load data: what signals and kills do to them, with real daemons."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import unittest
from pathlib import Path

import forks
from cluster import BIN, Cluster, value_of
from forks import Forked
from test_cluster import WithDaemons

# A loop over data of which a sample takes DATA seconds, with steps that take STEP.
LOOP = """
import os, signal, time
import torch
from torch.utils.data import DataLoader, Dataset
import tributary.torch as trib

class Slow(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        time.sleep(float(os.environ["DATA"]))
        return torch.full((4,), index / 64)

os.setpgrp()
torch.manual_seed(0)
torch.set_num_threads(1)
net = torch.nn.Linear(4, 1)
opt = trib.DistributedOptimizer(net, torch.optim.SGD(net.parameters(), lr=0.01), name="loads")
print("resumed loads", opt.round, flush=True)
loader = DataLoader(Slow(), batch_size=2, sampler=trib.DistributedSampler(Slow(), seed=1), num_workers=2)
for epoch in range(int(os.environ["EPOCHS"])):
    for x in loader:
        net(x).square().mean().backward()
        opt.step()
        opt.zero_grad()
        print("round loads", opt.round, flush=True)
        time.sleep(float(os.environ["STEP"]))
print("sum loads", sum(p.double().sum().item() for p in net.parameters()), flush=True)
"""


class WithLoaders(WithDaemons):
    def setUp(self) -> None:
        super().setUp()
        self.loop = self.folder / "loop.py"
        self.loop.write_text(LOOP)

    def start(self, cluster: Cluster, rank: int, epochs: int = 1000, data: float = 0.0, step: float = 0.0) -> Forked:
        return cluster.start_rank([str(self.loop)], rank, EPOCHS=str(epochs), DATA=str(data), STEP=str(step))

    def end(self, ranks: list[Forked]) -> None:
        """With all that they have started."""
        for rank in ranks:
            if rank.poll() is None:
                os.killpg(rank.pid, signal.SIGKILL)
                rank.wait()


class Kills(WithLoaders):
    """Processes that load data, and wait for more to do, are there for 5 s after their parent."""

    def test_a_killed_rank_is_noticed_and_replaced_at_once(self) -> None:
        with Cluster(self.folder / "kills", nodes=2) as cluster:
            ranks = [self.start(cluster, rank, step=0.1) for rank in range(2)]
            try:
                cluster.wait_for_round(0, "loads", 8)
                ranks[1].kill()
                ranks[1].wait()
                killed = time.monotonic()
                cluster.wait_for(0, "attaching again in")
                self.assertLess(time.monotonic() - killed, 2.0)
                self.assertIn(f"trainer rank 1 (pid {ranks[1].pid}) on node 1 died", cluster.log_of(0))
                (cluster.folder / "rank-1.log").unlink()
                ranks[1] = self.start(cluster, 1, step=0.1)
                cluster.wait_for(1, "round loads ")
                # It may go through round 8 once more: the loop was not at its top after it.
                self.assertGreaterEqual(int(value_of(cluster.log_of(1), "resumed", "loads")), 7)
                self.assertNotIn("is attached already", cluster.log_of(1))
            finally:
                self.end(ranks)


class Groups(WithLoaders):
    def sum_of(
        self, folder: Path, stops: list[tuple[int, signal.Signals]], data: float = 0.0, step: float = 0.0
    ) -> str:
        """Trains two epochs with these stops, signals to all processes of both ranks after a round; returns the sum."""
        with Cluster(folder, servers=1, nodes=2) as cluster:
            for round, number in [*stops, (0, None)]:
                for rank in range(2):
                    (folder / f"rank-{rank}.log").unlink(missing_ok=True)
                ranks = [self.start(cluster, rank, epochs=2, data=data, step=step) for rank in range(2)]
                try:
                    if number is not None:
                        for rank in range(2):
                            cluster.wait_for_round(rank, "loads", round)
                        for process in ranks:
                            os.killpg(process.pid, number)
                    for rank, process in enumerate(ranks):
                        self.assertEqual(process.wait(60), 75 if number else 0, cluster.log_of(rank))
                        if number:
                            self.assertIn("stopped after round", cluster.log_of(rank))
                            self.assertNotIn("Traceback", cluster.log_of(rank))
                finally:
                    self.end(ranks)
            sums = {value_of(cluster.log_of(rank), "sum", "loads") for rank in range(2)}
        self.assertEqual(len(sums), 1)
        return sums.pop()

    def test_a_signal_to_all_processes_stops_cleanly(self) -> None:
        stops = [(3, signal.SIGTERM), (7, signal.SIGINT), (12, signal.SIGTERM)]
        calm = self.sum_of(self.folder / "calm", [])
        # A loop that waits for its data, and one whose processes wait for it.
        self.assertEqual(self.sum_of(self.folder / "data", stops, data=0.02), calm)
        self.assertEqual(self.sum_of(self.folder / "steps", stops, step=0.1), calm)


# Rank 1 is lost when the job is over, and rank 0 has still something to do.
AT_THE_END = """
import os, signal, sys, time
import torch
import tributary.torch as trib

net = torch.nn.Linear(4, 1)
opt = trib.DistributedOptimizer(net, torch.optim.SGD(net.parameters(), lr=0.01), name="ends")
for step in trib.rounds(5):
    net(torch.ones(2, 4)).square().mean().backward()
    opt.step()
    opt.zero_grad()
rank = trib.rank()
opt.finish()
if rank == 1 and not os.path.exists(sys.argv[1]):
    open(sys.argv[1], "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
if rank == 0 and not os.path.exists(sys.argv[1] + "0"):
    open(sys.argv[1] + "0", "w").close()
    time.sleep(8)
"""


class Ends(WithDaemons):
    def test_a_rank_that_is_lost_when_the_job_is_over_does_not_wait_for_the_others(self) -> None:
        program = self.folder / "ends.py"
        program.write_text(AT_THE_END)
        run = [str(BIN / "tributary"), "run", "--nodes", "2", "--base-dir", str(self.folder / "run"), "--"]
        run += [*forks.python(), str(program), str(self.folder / "flag")]
        ended = subprocess.run(run, capture_output=True, text=True, timeout=100, check=False)
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        self.assertIn("they are started again", ended.stdout + ended.stderr)


if __name__ == "__main__":
    unittest.main()
