"""Checkpoints of jobs whose ranks keep more than a message holds, restored into other servers."""

from __future__ import annotations

import json
import subprocess
import time
import unittest
from pathlib import Path

from cluster import BIN, Cluster, value_of
from test_cluster import WithDaemons

ROUNDS = 24

# A net of 361 KiB. Its average is kept; with RMSprop trainers step, and keep parameters and optimizer state as well.
PROGRAM = """
import hashlib, sys, time
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
import tributary.torch as trib

optimizer, pause = sys.argv[1], float(sys.argv[2])
torch.manual_seed(3)
net = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.Tanh(), torch.nn.Linear(300, 8))
inner = getattr(torch.optim, optimizer)(net.parameters(), lr=0.001)
opt = trib.DistributedOptimizer(net, inner, name="job", job={"snapshot": {"every_s": 3600}})
average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
trib.keep(average=average)
for _ in trib.rounds(ROUNDS):
    torch.nn.functional.mse_loss(net(torch.randn(16, 300)), torch.randn(16, 8)).backward()
    opt.step()
    opt.zero_grad()
    average.update_parameters(net)
    print("round", "job", opt.round, flush=True)
    time.sleep(pause)
whole = hashlib.sha256()
for value in [*net.parameters(), *average.parameters(), *average.buffers()]:
    whole.update(value.detach().contiguous().numpy().tobytes())
print("digest", "job", whole.hexdigest(), flush=True)
"""


class LargeStates(WithDaemons):
    def order(self, cluster: Cluster, *words: str) -> dict[str, object]:
        where = ["--coordinator-admin", cluster.admin, "--token", str(cluster.token), "--json"]
        command = [BIN / "tributary", "checkpoint", *words, *where]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return dict(json.loads(done.stdout))

    def digests(self, logs: list[str]) -> list[str]:
        return [value_of(log, "digest", "job") for log in logs]

    def check(self, optimizer: str, servers: int) -> None:
        """The job of two servers is saved while it trains, and continues with others as if nothing had happened."""
        program = self.folder / "program.py"
        program.write_text(PROGRAM.replace("ROUNDS", str(ROUNDS)))
        with Cluster(self.folder / "calm", servers=2, nodes=2) as cluster:
            calm = self.digests(cluster.run([str(program), optimizer, "0"]))
        with Cluster(self.folder / "first", servers=2, nodes=2) as cluster:
            ranks = [cluster.start_rank([str(program), optimizer, "0.1"], rank) for rank in range(2)]
            cluster.wait_for_round(0, "job", 5)
            saved = self.order(cluster, "save", "job", "--dir", str(self.folder))
            for rank in ranks:
                self.assertIsNone(rank.poll(), "it ended before it was saved")
        self.assertIsNone(saved["lacks"])
        path = Path(str(saved["path"]))
        parts = list(path.glob("part-*.bin"))
        self.assertGreater(len(parts), 0)
        for part in parts:
            self.assertGreater(part.stat().st_size, 256 << 10)
        verified = subprocess.run([BIN / "tributary", "checkpoint", "verify", path], capture_output=True, text=True)
        self.assertRegex(verified.stdout, rf"whole \([0-9]+ chunks, {len(parts)} large parts?, ")
        with Cluster(self.folder / "second", servers=servers, nodes=2) as cluster:
            time.sleep(1)  # until all are known
            self.order(cluster, "restore", str(path))
            logs = cluster.run([str(program), optimizer, "0"])
        self.assertNotIn("round job 1\n", logs[0])
        self.assertEqual(self.digests(logs), calm)

    def test_an_average_of_any_size(self) -> None:
        self.check("SGD", servers=3)

    def test_optimizers_that_step_in_the_trainers(self) -> None:
        self.check("RMSprop", servers=1)


if __name__ == "__main__":
    unittest.main()
