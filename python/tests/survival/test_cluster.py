"""Against real daemons: the steps are torch's, the same bits on every topology, and jobs that survive.

Lines "fidelity ..." and "digest ..." have what was measured.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any

import torch
from cluster import PROGRAMS, Cluster, not_built, value_of, wait_all
from forks import Forked
from trainer import OPTIMIZERS, reference

TRAINER = str(PROGRAMS / "trainer.py")
ROUNDS = 200


def settings(*jobs: dict[str, Any]) -> list[str]:
    return [TRAINER, json.dumps(jobs)]


def say(figures: str) -> None:
    """Also where unittest keeps what tests print."""
    print(figures, file=sys.__stdout__, flush=True)


class WithDaemons(unittest.TestCase):
    def setUp(self) -> None:
        self.assertEqual(not_built(), "")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def program(self, name: str, text: str) -> str:
        """A program in the folder that has all that ``trainer.py`` has."""
        path = self.folder / name
        path.write_text(f"import sys; sys.path.insert(0, {str(PROGRAMS)!r})\nfrom trainer import *\n{text}")
        return str(path)


class Fidelity(WithDaemons):
    def check(self, jobs: list[dict[str, Any]], tolerance: float = 1e-5) -> None:
        for job in jobs:
            job["save"] = str(self.folder / f"{job['name']}.pt")
        with Cluster(self.folder, servers=2, nodes=2) as cluster:
            cluster.run(settings(*jobs), timeout=300)
        for job in jobs:
            with self.subTest(job["name"]):
                want = reference(job, world=2).state_dict()
                got = torch.load(job["save"])
                errors = {key: float((got[key] - value).norm() / value.norm()) for key, value in want.items()}
                say(f"fidelity {job['name']} {job['rounds']} rounds, relative error {max(errors.values()):.1e}")
                for key, error in errors.items():
                    self.assertLess(error, tolerance, key)

    def test_every_optimizer(self) -> None:
        self.check([{"name": name, "optimizer": name, "rounds": ROUNDS} for name in OPTIMIZERS])

    def test_groups_scheduler_and_clip(self) -> None:
        given = {"rounds": ROUNDS, "grouped": True, "scheduler": True, "options": {"max_grad_norm": 0.3}}
        self.check([{"name": f"{name}-all", "optimizer": name, **given} for name in OPTIMIZERS])

    def test_schedules_of_rate_decay_and_momentum(self) -> None:
        given = {"rounds": 60, "grouped": True, "cycle": True}
        self.check([{"name": f"{name}-cycle", "optimizer": name, **given} for name in OPTIMIZERS])

    def test_groups_that_differ_by_rate_only(self) -> None:
        self.check([{"name": f"{name}-rates", "optimizer": name, "rounds": 50, "rates": True} for name in OPTIMIZERS])


class Bits(WithDaemons):
    def test_the_same_on_every_topology(self) -> None:
        given = {"grouped": True, "scheduler": True, "options": {"max_grad_norm": 0.5}}
        jobs = [{"name": name, "optimizer": name, **given} for name in ("adamw", "nesterov")]
        digests: dict[str, set[str]] = {job["name"]: set() for job in jobs}
        for nodes, ranks in ((1, 4), (2, 2), (4, 1), (1, 1)):
            accumulate = 4 if nodes * ranks == 1 else 1
            wanted = settings(*({**job, "accumulate": accumulate} for job in jobs))
            with Cluster(self.folder / f"{nodes}x{ranks}", servers=1, nodes=nodes, store=False) as cluster:
                for log in cluster.run(wanted, ranks_per_node=ranks):
                    for name, seen in digests.items():
                        seen.add(value_of(log, "digest", name))
        for name, seen in digests.items():
            say(f"digest {name}: 1x4, 2x2, 4x1 and one process with accumulate=4 have {' and '.join(sorted(seen))}")
            self.assertEqual(len(seen), 1, name)

    def test_another_rate_is_the_same_job(self) -> None:
        job = {"name": "rates", "optimizer": "adamw", "grouped": True}
        with Cluster(self.folder, servers=2, nodes=2) as cluster:
            dropped = cluster.run(settings({**job, "name": "dropped", "rounds": 20, "drop_at": 10}))
            cluster.run(settings({**job, "rounds": 10}))
            halved = cluster.run(settings({**job, "rounds": 20, "factor": 0.5}))
            for one, other in zip(dropped, halved):
                self.assertEqual(value_of(other, "resumed", "rates"), "10")
                self.assertEqual(value_of(one, "digest", "dropped"), value_of(other, "digest", "rates"))


class Survival(WithDaemons):
    def calm(self, job: dict[str, Any], nodes: int) -> str:
        with Cluster(self.folder / "calm", servers=2, nodes=nodes) as cluster:
            return value_of(cluster.run(settings({**job, "pause": 0.0}))[0], "digest", job["name"])

    def test_kills(self) -> None:
        job = {"name": "kills", "optimizer": "nesterov", "rounds": 120, "pause": 0.03, "cycle": True}
        calm = self.calm(job, nodes=2)
        with Cluster(self.folder / "kills", servers=2, nodes=2) as cluster:
            ranks = [cluster.start_rank(settings(job), rank) for rank in range(2)]
            cluster.wait_for_round(0, "kills", 10)
            ranks[1].kill()  # a trainer: another one takes its place
            ranks[1].wait()
            ranks[1] = cluster.start_rank(settings(job), 1)
            cluster.wait_for_round(0, "kills", 40)
            cluster.kill("worker-0")
            cluster.start_worker(0)
            cluster.wait_for_round(0, "kills", 70)
            cluster.kill("server-1")
            cluster.start_server(1)
            wait_all(ranks, 90)
            logs = [cluster.log_of(rank) for rank in range(2)]
            for rank, process in enumerate(ranks):
                self.assertEqual(process.returncode, 0, logs[rank])
                self.assertEqual(value_of(logs[rank], "digest", "kills"), calm, logs[rank])
            self.assertIn("attaching again in", logs[0])
            self.assertGreaterEqual(int(value_of(logs[1], "resumed", "kills")), 9)  # round 10 may come once more

    def test_a_signal_stops_all_and_the_same_command_goes_on(self) -> None:
        job = {"name": "stops", "optimizer": "adam", "rounds": 60, "pause": 0.02}
        calm = self.calm(job, nodes=2)
        with Cluster(self.folder / "stops", servers=2, nodes=2) as cluster:
            ranks = [cluster.start_rank(settings(job), rank) for rank in range(2)]
            cluster.wait_for_round(1, "stops", 15)
            ranks[1].send_signal(signal.SIGTERM)
            for rank, process in enumerate(ranks):
                self.assertEqual(process.wait(30), 75, cluster.log_of(rank))
            self.assertIn("rank 1 was told to stop (SIGTERM)", cluster.log_of(0))
            for log in cluster.run(settings(job)):
                self.assertEqual(value_of(log, "digest", "stops"), calm)
                self.assertGreaterEqual(int(value_of(log, "resumed", "stops")), 15)

    def test_a_rank_that_waits_answers_a_signal(self) -> None:
        job = {"name": "answers", "optimizer": "sgd", "rounds": 100_000, "pause": 0.01}
        with Cluster(self.folder, nodes=2, store=False) as cluster:
            alone = cluster.start_rank(settings(job))
            cluster.wait_for(0, "waiting for node 1")
            alone.send_signal(signal.SIGINT)
            self.assertEqual(alone.wait(60), 75, cluster.log_of(0))
            self.assertIn("stopped: told to stop while job 'answers' waited for node 1, ", cluster.log_of(0))

            for ends in ("the round", "a second signal"):
                (self.folder / "rank-0.log").unlink()
                ranks = [cluster.start_rank(settings(job), rank) for rank in range(2)]
                cluster.wait_for_round(0, "answers", 10)
                ranks[1].send_signal(signal.SIGSTOP)
                time.sleep(0.5)
                ranks[0].send_signal(signal.SIGINT)
                cluster.wait_for(0, "rank 0: SIGINT: stops when ")
                if ends == "the round":
                    ranks[1].send_signal(signal.SIGCONT)
                    self.assertEqual([process.wait(60) for process in ranks], [75, 75], cluster.log_of(0))
                else:
                    time.sleep(1.1)
                    ranks[0].send_signal(signal.SIGINT)
                    self.assertEqual(ranks[0].wait(60), 128 + signal.SIGINT, cluster.log_of(0))
                    ranks[1].kill()
                    ranks[1].wait()

    def test_an_attach_takes_as_long_as_the_environment_says(self) -> None:
        with Cluster(self.folder, nodes=2, store=False) as cluster:
            alone = cluster.start_rank(settings({"name": "alone"}), TRIBUTARY_ATTACH_TIMEOUT="1")
            self.assertEqual(alone.wait(60), 1, cluster.log_of(0))
            self.assertIn("job 'alone' did not come together within 1000 ms; missing: ", cluster.log_of(0))

    def test_ranks_with_different_rates(self) -> None:
        program = self.program(
            "rates.py",
            "net = model()\n"
            "rate = 0.1 * (1 + trib.rank())\n"
            "opt = trib.DistributedOptimizer(net, torch.optim.SGD(net.parameters(), lr=rate), name='rates')\n"
            "for i in range(5):\n"
            "    net(torch.ones(2, 20)).sum().backward(); opt.step(); opt.zero_grad()\n",
        )
        for nodes, ranks_per_node in ((2, 1), (1, 2)):
            with (
                self.subTest(nodes=nodes),
                Cluster(self.folder / f"rates-{nodes}", nodes=nodes, store=False) as cluster,
            ):
                ranks = [cluster.start_rank([program], rank, ranks_per_node) for rank in range(2)]
                wait_all(ranks, 180)
                logs = "".join(cluster.log_of(rank) for rank in range(2))
                self.assertRegex(logs, "differs from .*; all ranks must set the same values")
                self.assertIn("0.2000", logs)

    def test_a_rank_that_hangs_is_no_silence_at_the_others(self) -> None:
        job = {"name": "hangs", "optimizer": "sgd", "rounds": 60, "pause": 0.02}
        with Cluster(self.folder, nodes=2, store=False) as cluster:
            ranks = [cluster.start_rank(settings(job), rank) for rank in range(2)]
            cluster.wait_for_round(0, "hangs", 10)
            ranks[1].send_signal(signal.SIGSTOP)
            deadline = time.monotonic() + 60
            while "no parameters of round" not in cluster.log_of(0) and time.monotonic() < deadline:
                time.sleep(0.1)
            ranks[1].send_signal(signal.SIGCONT)
            wait_all(ranks, 60)
            self.assertEqual([process.returncode for process in ranks], [0, 0])
            self.assertRegex(
                cluster.log_of(0), r"rank 0: no parameters of round \d+ for 1\d s; `tributary status` says why"
            )

    def ended_by_rank_1(self, cluster: Cluster, how: str) -> list[Forked]:
        """Two ranks, of which rank 1 does that instead of its sixth step."""
        program = self.program(
            "ends.py",
            "net = model()\n"
            "opt = trib.DistributedOptimizer(net, torch.optim.SGD(net.parameters(), lr=0.1), name='ends')\n"
            "for i in range(100):\n"
            f"    if i == 5 and trib.rank() == 1: {how}\n"
            "    net(torch.ones(2, 20)).sum().backward(); opt.step(); opt.zero_grad()\n",
        )
        return [cluster.start_rank([program], rank) for rank in range(2)]

    def test_how_a_rank_failed_is_told_to_all(self) -> None:
        ways = {"raise ValueError('bad batch')": "ValueError: bad batch", "sys.exit(3)": "sys.exit(3)"}
        for i, (how, told) in enumerate(ways.items()):
            with self.subTest(how), Cluster(self.folder / str(i), nodes=2, store=False) as cluster:
                ranks = self.ended_by_rank_1(cluster, how)
                self.assertEqual(ranks[1].wait(60), 3 if "3" in how else 1)
                cluster.wait_for(0, told)

    def test_a_rank_that_makes_fewer_steps_stops_the_others(self) -> None:
        with Cluster(self.folder, nodes=2) as cluster:
            ranks = self.ended_by_rank_1(cluster, "break")
            self.assertEqual([rank.wait(60) for rank in ranks], [75, 0], cluster.log_of(0))
            self.assertIn("node 1 finished after round 5, and node 0 has begun another one", cluster.log_of(0))


if __name__ == "__main__":
    unittest.main()
