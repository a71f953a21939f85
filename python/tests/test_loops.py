"""A part of table_of_loops.py: loops beside their calm runs, with real daemons."""

from __future__ import annotations

import tempfile
import unittest
from pathlib import Path

from cluster import not_built
from table_of_loops import compare


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


if __name__ == "__main__":
    unittest.main()
