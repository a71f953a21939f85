"""A disk of a server is lost while the job rests: what ranks keep is on a second server, too."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from cluster import BIN, environment, not_built

# An optimizer that only torch has: its state, which trainers keep, is some hundred kilobytes.
PROGRAM = """
import hashlib, sys
import torch
import tributary.torch as trib

stop_at = int(sys.argv[1])
torch.manual_seed(3)
model = torch.nn.Linear(400, 300)
inner = torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.9)
settings = {"job": {"name": "lost"}, "snapshot": {"copies": 2}}  # both servers are on this machine
opt = trib.DistributedOptimizer(model, inner, step_on="trainers", job=settings)
data = torch.Generator()
for step in trib.rounds(30):
    data.manual_seed(100 * step + trib.rank())
    model(torch.randn(8, 400, generator=data)).square().mean().backward()
    opt.step()
    opt.zero_grad()
    if step == stop_at:
        trib.stop("enough")
parameters = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
print("digest", hashlib.sha256(parameters).hexdigest(), flush=True)
"""


@unittest.skipIf(not_built(), not_built())
class LostDisk(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.folder / "program.py").write_text(PROGRAM)

    def run_in(self, base: str, stop_at: int) -> str:
        """Returns the digest that rank 0 prints."""
        command = [str(BIN / "tributary"), "run", "--servers", "2", "--nodes", "2", "--base-dir"]
        command += [str(self.folder / base), "--", sys.executable, str(self.folder / "program.py"), str(stop_at)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment(), timeout=300, cwd=self.folder
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        lines = [line for line in done.stdout.splitlines() if line.startswith("digest ")]
        return lines[-1] if lines else ""

    def test_what_ranks_kept_comes_from_the_second_server(self) -> None:
        calm = self.run_in("calm", -1)
        self.assertTrue(calm)
        for server in (0, 1):
            with self.subTest(server=server):
                base = f"server-{server}"
                self.run_in(base, 20)
                shutil.rmtree(self.folder / base / f"store-{server}")
                self.assertEqual(self.run_in(base, -1), calm)


if __name__ == "__main__":
    unittest.main()
