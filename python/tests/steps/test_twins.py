"""Two ranks with real daemons against DistributedDataParallel on gloo: the same gradients and parameters.

Lines "twins ..." have what was measured.
"""

from __future__ import annotations

import subprocess
import unittest
from typing import Any

import forks
import torch
from cluster import PROGRAMS, Cluster, environment, free_port
from test_cluster import WithDaemons, say
from twins import CASES, RANKS

PROGRAM = str(PROGRAMS / "twins.py")


class Twins(WithDaemons):
    def results(self, case: str, how: str) -> list[Any]:
        return [torch.load(self.folder / f"{case}-{how}-{rank}.pt") for rank in range(RANKS)]

    def difference(self, case: str) -> float:
        """The largest one of a parameter, of rank 0's buffers, or of the last step's mean gradient."""
        mine, ddp = self.results(case, "tributary"), self.results(case, "ddp")
        worst = 0.0
        for rank, (got, want) in enumerate(zip(mine, ddp)):
            for net, twin in zip(got[0], want[0]):
                for name, value in twin.items():
                    if rank == 0 or "running" not in name:
                        worst = max(worst, float((net[name] - value).abs().max()))
        for number, gradients in enumerate(ddp[0][1]):
            for name, value in gradients.items():
                mean = torch.stack([result[1][number][name] for result in mine]).mean(0)
                worst = max(worst, float((mean - value).abs().max()))
        return worst

    def test_the_same_numbers(self) -> None:
        arguments = [str(self.folder), *CASES]
        variables = environment(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
        command = [*forks.python(), PROGRAM, "ddp", *arguments]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        with Cluster(self.folder, servers=2, nodes=RANKS, store=False) as cluster:
            cluster.run([PROGRAM, "tributary", *arguments], timeout=300)
        for case in CASES:
            with self.subTest(case):
                worst = self.difference(case)
                say(f"twins {case}, 50 steps of two ranks, largest difference from DDP {worst:.1e}")
                self.assertLess(worst, 1e-6)


if __name__ == "__main__":
    unittest.main()
