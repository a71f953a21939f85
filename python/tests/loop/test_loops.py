"""A part of table_of_loops.py: loops compared with their calm runs, with real daemons."""

from __future__ import annotations

import tempfile
import unittest
from pathlib import Path

import torch
from cluster import not_built
from loops import CLIP, data, sgd
from table_of_loops import Run, compare
from torch.nn import functional as F


@unittest.skipIf(not_built(), not_built())
class Loops(unittest.TestCase):
    def test_what_goes_on_is_the_calm_run(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for loop, processes, how, round in (
                ("per_epoch", 2, "rank", 12),
                ("max_steps", 2, "SIGTERM to the group", 7),
                ("no_sync", 0, "worker", 5),
                ("rate_by_hand", 0, "rank", 9),
                ("plateau", 0, "Ctrl-C", 11),
                ("diloco", 0, "server", 3),
                ("plateau", 0, "server", 13),
            ):
                with self.subTest(loop, processes=processes, how=how):
                    self.assertEqual(compare(Path(folder), loop, processes, how, round), "")

    def test_ranks_with_unequal_data_end_together(self) -> None:
        """In a rank's last rounds the mean is of those that have data; also when a rank is lost there."""
        with tempfile.TemporaryDirectory() as folder:
            for how, round in (("rank", 9), ("server", 15), ("Ctrl-C", 19)):
                with self.subTest(how=how):
                    self.assertEqual(compare(Path(folder), "uneven", 0, how, round), "")
            said = Run(Path(folder) / "uneven-0-calm", "uneven", 0).rounds()
        for round in range(1, 31):
            there = [f"round {round}" in {key for of, key in said if of == rank} for rank in range(2)]
            self.assertEqual(there, [True, (round - 1) % 10 < 7])
        self.check_norms(said)

    def test_the_mean_is_clipped_by_value(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(compare(Path(folder), "clipped_here", 0, "rank", 9), "")
            said = Run(Path(folder) / "clipped_here-0-calm", "clipped_here", 0).rounds()
        self.check_norms(said, clip=CLIP)

    def check_norms(self, said: dict[tuple[int, str], list[str]], clip: float = float("inf")) -> None:
        """After each round they are those of one process, which takes the mean over ranks that have samples."""
        torch.manual_seed(3)
        net = torch.nn.Linear(8, 1)
        opt = sgd(net)
        x, y, _ = data().tensors
        for round in range(1, 31):
            lines = [said[rank, f"round {round}"] for rank in range(2) if (rank, f"round {round}") in said]
            given = [[int(n) for n in line[0].split()[3].split(",")] for line in lines]
            opt.zero_grad()
            torch.stack([F.mse_loss(net(x[index]), y[index]) for index in given]).mean().backward()
            torch.nn.utils.clip_grad_value_(net.parameters(), clip)
            opt.step()
            self.assertAlmostEqual(float(said[0, f"norm {round}"][0]), net.weight.norm().item(), places=5)

    def test_jobs_of_one_program_go_on_together(self) -> None:
        """Between two of their rounds, one of them is ahead of the iteration that the rank comes back to."""
        with tempfile.TemporaryDirectory() as folder:
            for processes, how, round, word in (
                (0, "rank", 1, "generator"),
                (0, "rank", 6, "generator"),
                (2, "rank", 7, "round"),
                (0, "worker", 12, "generator"),
                (0, "server", 4, "generator"),
                (2, "SIGTERM to the group", 8, "generator"),
            ):
                with self.subTest(processes=processes, how=how, word=word):
                    self.assertEqual(compare(Path(folder), "gan", processes, how, round, word), "")

    def test_a_job_that_begins_in_the_middle_of_the_loop(self) -> None:
        """Parameters that are frozen until an epoch's end."""
        with tempfile.TemporaryDirectory() as folder:
            for how, round in (("rank", 4), ("rank", 15), ("server", 11), ("SIGTERM to the group", 23)):
                with self.subTest(how=how, round=round):
                    self.assertEqual(compare(Path(folder), "unfrozen", 0, how, round), "")
            said = Run(Path(folder) / "unfrozen-0-calm", "unfrozen", 0).rounds()
        rounds = [round for rank, round in said if rank == 0 and round.startswith("round ")]
        self.assertEqual(len(rounds), 30)


if __name__ == "__main__":
    unittest.main()
