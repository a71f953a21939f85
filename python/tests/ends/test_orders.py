"""Orders of a program for its own job: checkpoints, and the end of training."""

from __future__ import annotations

import re
import subprocess

import forks
from cluster import BIN, value_of
from test_cluster import WithDaemons

# A job that saves itself, and continues from that in another cluster.
OWN_ORDERS = """
import sys, time
import torch
import tributary.torch as trib

folder, rounds, begins = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
if begins:
    print("loaded", "own", trib.load_checkpoint(begins[0]), flush=True)
torch.manual_seed(3)
net = torch.nn.Linear(4, 2)
inner = torch.optim.AdamW(net.parameters(), lr=0.01)
opt = trib.DistributedOptimizer(net, inner, name="own", max_grad_norm=float("inf"))
first = opt.round
for _ in trib.rounds(rounds):
    net(torch.full((3, 4), 1.0 + trib.rank())).square().mean().backward()
    opt.step()
    opt.zero_grad()
    time.sleep(0.05)
    if opt.round == 5 and not begins:
        saved = trib.save_checkpoint(folder)
print("begins", "own", first, flush=True)
print("norm", "own", opt.grad_norm, opt.skipped, flush=True)
print("weights", "own", net.weight.flatten().tolist(), flush=True)
trib.finish()
if not begins and trib.rank() == 0:
    path = saved.result()
    state = trib.full_state_dict(net, torch.optim.AdamW(net.parameters(), lr=0.01), path)["state"]
    print("saved", "own", path, int(state[0]["step"]), flush=True)
"""


# One of four ranks has seen enough.
ENOUGH = """
import hashlib
import torch
import tributary.torch as trib

torch.manual_seed(3)
data = torch.utils.data.TensorDataset(torch.randn(320, 4))
net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
opt = trib.DistributedOptimizer(net, torch.optim.AdamW(net.parameters(), lr=0.01), name="enough")
loader = torch.utils.data.DataLoader(data, batch_size=8, sampler=trib.DistributedSampler(data, seed=1))
for epoch in trib.epochs(1000):
    for (x,) in loader:
        net(x).square().mean().backward()
        opt.step()
        opt.zero_grad()
        if trib.rank() == 2 and opt.round == 17:
            trib.stop("it is good enough")
trained = int(net[1].num_batches_tracked)
parameters = b"".join(p.detach().numpy().tobytes() for p in net.parameters())
print(f"rank {trib.rank()}: {opt.round} {trained} {hashlib.sha256(parameters).hexdigest()}", flush=True)
"""


class OwnOrders(WithDaemons):
    def run_job(self, text: str, name: str, *words: str, ranks: int = 1) -> list[str]:
        """Text that each rank printed."""
        program = self.folder / "own.py"
        program.write_text(text)
        options = ["--servers", "1", "--nodes", "2", "--ranks-per-node", str(ranks), "--fresh", "--base-dir"]
        ran = subprocess.run(
            [BIN / "tributary", "run", *options, self.folder / name, "--", *forks.python(), program, *words],
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        logs = (self.folder / name / "logs").glob("trainer-*")
        return [ran.stdout, *(log.read_text() for log in sorted(logs))]

    def test_a_program_saves_its_job_and_begins_with_it_elsewhere(self) -> None:
        first = self.run_job(OWN_ORDERS, "first", str(self.folder / "saved"), "30")
        path, step = value_of("\n".join(first), "saved", "own").split()
        self.assertIn(f"-round-{step}", path)
        self.assertLessEqual(5, int(step))
        second = "\n".join(self.run_job(OWN_ORDERS, "second", str(self.folder / "saved"), "30", path))
        self.assertIn(int(value_of(second, "begins", "own")), (int(step) - 1, int(step)))  # once more, maybe
        self.assertIn("loaded own True", second)
        for log in (*first, second):
            for line in log.splitlines():
                if line.startswith("norm"):
                    norm, skipped = line.split()[2:]
                    self.assertTrue(0.0 < float(norm) < 100.0 and skipped == "False", line)
        lines = {line for log in (*first, second) for line in log.splitlines() if line.startswith("weights")}
        self.assertEqual(len(lines), 1)

    def test_one_rank_ends_training_for_all(self) -> None:
        said = "\n".join(self.run_job(ENOUGH, "enough", ranks=2))
        ranks = {int(rank): end for rank, end in re.findall(r"^rank (\d): (.*)$", said, re.MULTILINE)}
        self.assertEqual(sorted(ranks), [0, 1, 2, 3])
        self.assertEqual(len(set(ranks.values())), 1, ranks)
        self.assertTrue(ranks[0].startswith("17 17 "), ranks)
        self.assertIn("training has ended with round 17: rank 2 ended training: it is good enough", said)
