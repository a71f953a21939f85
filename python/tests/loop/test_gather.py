"""Values that ranks give each other, with daemons that are killed: each stays the same, and no rank waits forever."""

from __future__ import annotations

import json
import tempfile
import unittest
from pathlib import Path
from typing import Any

import cluster
from cluster import Cluster, wait_all
from forks import Forked

PROGRAM = str(cluster.PROGRAMS / "gather_rank.py")
RANKS = 2


@unittest.skipIf(cluster.not_built(), cluster.not_built())
class Gathers(unittest.TestCase):
    def setUp(self) -> None:
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.folder = Path(folder)
        self.cluster = self.enterContext(Cluster(self.folder, nodes=RANKS))

    def start(self, rank: int, **settings: Any) -> Forked:
        return self.cluster.start_rank([PROGRAM, json.dumps({"folder": str(self.folder), **settings})], rank)

    def values(self) -> dict[tuple[int, int], list[str]]:
        """By round and index; all ranks, and all processes of each, say the same."""
        values: dict[tuple[int, int], list[str]] = {}
        for rank in range(RANKS):
            for line in self.cluster.log_of(rank).splitlines():
                if not line.startswith("values "):
                    continue
                _, round, index, text = line.split(" ", 3)
                given = json.loads(text)
                self.assertEqual(values.setdefault((int(round), int(index)), given), given)
        return values

    def test_ranks_and_daemons_that_are_killed_between_two_values(self) -> None:
        settings = {"rounds": 44, "holds": [3, 6, 30, 40], "pause": 0.05}
        first, second = self.start(0, **settings), self.start(1, **settings)

        self.cluster.wait_for(1, "holds 3")
        old = second.pid
        second.kill()
        second.wait()
        (self.folder / "go-3").touch()
        second = self.start(1, **settings)

        self.cluster.wait_for(1, "holds 6")
        self.cluster.kill("worker-1")
        (self.folder / "go-6").touch()
        self.cluster.start_worker(1)

        self.cluster.wait_for(1, "holds 30")
        # Else the job begins again.
        self.assertIn("wrote the snapshot", (self.folder / "server-0.log").read_text())
        self.cluster.kill("server-0")
        (self.folder / "go-30").touch()
        self.cluster.start_server(0)

        self.cluster.wait_for(1, "holds 40")
        for name in ("server-0", "worker-0"):
            self.cluster.kill(name)
        second.kill()
        second.wait()
        (self.folder / "go-40").touch()
        self.cluster.start_server(0)
        self.cluster.start_worker(0)
        third = self.start(1, **settings)

        wait_all([first, third], 120)
        logs = "\n".join(self.cluster.log_of(rank) for rank in range(RANKS))
        self.assertEqual((first.returncode, third.returncode), (0, 0), logs)
        values = self.values()
        self.assertEqual(sorted(values), [(round, index) for round in range(45) for index in range(2)])
        for (round, index), given in values.items():
            for rank, value in enumerate(given):
                self.assertRegex(value, f"^{rank}:[0-9]+:{round}:{index}$")
        # Calls that were complete before its process was killed are not repeated; others are.
        self.assertEqual(values[3, 0][1], f"1:{old}:3:0")
        self.assertNotEqual(values[3, 1][1], f"1:{old}:3:1")
        self.assertEqual(values[40, 0][1], f"1:{second.pid}:40:0")
        self.assertEqual(values[40, 1][1], f"1:{third.pid}:40:1")

    def test_a_rank_that_skips_a_call_ends_the_job_for_all(self) -> None:
        ranks = [self.start(rank, rounds=9, skips=4) for rank in range(RANKS)]
        for process in ranks:
            process.wait(60)
        for rank, process in enumerate(ranks):
            self.assertNotEqual(process.returncode, 0)
            self.assertIn(
                "rank 0 is at value 0 after round 4, rank 1 at value 1 after round 4: all ranks make the same calls",
                self.cluster.log_of(rank),
            )

    def test_a_rank_that_has_finished_is_not_waited_for(self) -> None:
        ranks = [self.start(rank, rounds=9, leaves=4) for rank in range(RANKS)]
        for process in ranks:
            process.wait(60)
        self.assertIn("ends CONTINUE", self.cluster.log_of(1))
        self.assertIn("ends VIEW_STOPPED", self.cluster.log_of(0))


if __name__ == "__main__":
    unittest.main()
