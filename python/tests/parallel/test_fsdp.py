"""Ranks that fully_shard splits a model over: what they push, one process' bits, and a rank that is killed."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
import unittest
from collections.abc import Iterator

import forks
from cluster import BIN, PROGRAMS, environment, outputs_of_ranks, processes_of
from test_cluster import WithDaemons, say
from test_parallel import Runs


class Ranks(unittest.TestCase):
    def test_what_they_push_adds_up_to_the_gradient_of_one_process(self) -> None:
        for rank, (output, status) in enumerate(outputs_of_ranks([PROGRAMS / "fsdp_ranks.py"], 4, 120)):
            self.assertEqual(status, 0, output)
            said = dict(line.split(": ", 1) for line in output.splitlines() if line.startswith("case "))
            self.assertEqual(len(said), 23, output)
            for case, outcome in said.items():
                with self.subTest(case, rank=rank):
                    self.assertEqual(outcome, "ok")


class Curve(Runs):
    def test_the_example_follows_one_process_with_a_rank_killed(self) -> None:
        size, rounds = 40_000, 18
        with self.run_of("fsdp", size, 2, 2) as process:
            self.await_round(process, 8)
            self.kill("losses_of.py")
            self.assertEqual(process.wait(150), 0, self.output.read_text())
        self.assertIn("was killed by signal 9", self.output.read_text())
        self.check("fully_shard 2 x 2", {rounds: 4}, size)


class Digests(WithDaemons):
    ROUNDS = 60

    @contextlib.contextmanager
    def run_of(self, optimizer: str, nodes: int, ranks: int) -> Iterator[subprocess.Popen[bytes]]:
        command = [BIN / "tributary", "run", "--servers", "1", "--nodes", str(nodes), "--ranks-per-node", str(ranks)]
        self.base = self.folder / f"{optimizer}-{nodes}"
        command += ["--base-dir", self.base, "--", *forks.python()]
        command += [PROGRAMS / "fsdp_digest.py", optimizer, str(self.ROUNDS)]
        self.output = self.folder / "output"
        with open(self.output, "wb") as output:
            process = subprocess.Popen(command, env=environment(), stdout=output, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.wait(60)

    def digest(self) -> str:
        return re.findall(r"digest (\w+)", self.said())[-1]

    def said(self) -> str:
        """By the ranks and by the run."""
        return self.output.read_text() + "".join(log.read_text() for log in sorted(self.base.glob("logs/*rank*")))

    def check(self, optimizer: str) -> None:
        with self.run_of(optimizer, 1, 1) as process:
            self.assertEqual(process.wait(60), 0, self.said())
        alone = self.digest()
        with self.run_of(optimizer, 2, 2) as process:
            deadline = time.monotonic() + 60
            while "round 20\n" not in self.said():
                self.assertIsNone(process.poll(), self.said())
                self.assertLess(time.monotonic(), deadline, self.said())
                time.sleep(0.05)
            os.kill(processes_of("fsdp_digest.py", self.base)[-1], signal.SIGKILL)
            self.assertEqual(process.wait(90), 0, self.said())
        self.assertIn("was killed by signal 9", self.said())
        say(f"digest {optimizer}: fully_shard 2 x 2 with a rank killed {self.digest()}, one process {alone}")
        self.assertEqual(self.digest(), alone)

    def test_one_process_has_the_bits_of_ranks_of_which_one_is_killed(self) -> None:
        self.check("adamw")

    def test_so_it_does_where_the_trainers_step(self) -> None:
        self.check("rmsprop")
