"""Ranks that hold a part of the model: the examples follow one process, survive, and continue with other replicas."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Iterator
from pathlib import Path

import forks
import torch
from cluster import BIN, PROGRAMS, REPOSITORY, environment, outputs_of_ranks, processes_of
from test_cluster import WithDaemons, say
from torch.nn import functional as F

from tributary.torch._session.progress import RoundReport, as_datagram

sys.path.insert(0, str(REPOSITORY / "examples"))
from byte_gpt import ByteGPT, datasets

CONTEXT = 64
BATCH = 8
TEXT = sorted(Path(contextlib.__file__).parent.glob("*.py"))


class Reference:
    """One process that trains with the joined batches of so many replicas, which may change between rounds."""

    def __init__(self, text: Path, size: int) -> None:
        self.data, _ = datasets(str(text), size, CONTEXT)
        torch.manual_seed(0)
        self.model = ByteGPT(context=CONTEXT)
        self.optimizer = torch.optim.AdamW(self.model.groups(), lr=1e-3)
        generator = torch.Generator()
        generator.manual_seed(1)
        self.order = torch.randperm(len(self.data), generator=generator).tolist()
        self.taken = 0

    def losses(self, replicas: int) -> list[float]:
        """Trains the next round on the following samples. Returns its losses by replica."""
        batch = BATCH * replicas
        samples = [self.data[i] for i in self.order[self.taken : self.taken + batch]]
        self.taken += batch
        x, y = (torch.stack(side) for side in zip(*samples))
        losses = F.cross_entropy(self.model(x).flatten(0, 1), y.flatten(), reduction="none").view(batch, -1).mean(1)
        losses.mean().backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        # Neighbours in the order are neighbouring replicas' samples.
        return losses.detach().view(BATCH, replicas).mean(0).tolist()


class Runs(WithDaemons):
    """Runs of an example, whose losses are those of one process."""

    def setUp(self) -> None:
        super().setUp()
        self.text = self.folder / "text"
        self.text.write_bytes(b"".join(file.read_bytes() for file in TEXT)[:200_000])

    @contextlib.contextmanager
    def run_of(self, example: str, size: int, nodes: int, ranks: int) -> Iterator[subprocess.Popen[bytes]]:
        command = [BIN / "tributary", "run", "--servers", "2", "--nodes", str(nodes), "--ranks-per-node", str(ranks)]
        command += ["--base-dir", self.folder / "run", "--", *forks.python(), PROGRAMS / "losses_of.py", self.folder]
        command += [REPOSITORY / "examples" / f"{example}.py", "--text", self.text]
        command += ["--bytes", str(size), "--epochs", "1"]
        self.output = self.folder / "output"
        with open(self.output, "ab") as output:
            process = subprocess.Popen(command, env=environment(), stdout=output, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.wait(60)

    def losses(self) -> dict[int, dict[int, float]]:
        """By round and replica, as they were said last. A rank that ends may have completed a round and not said it."""
        said: dict[int, dict[int, float]] = {}
        for file in self.folder.glob("losses-*"):
            for line in file.read_text().splitlines():
                if len(words := line.split()) == 3:
                    said.setdefault(int(words[0]), {})[int(words[1])] = float(words[2])
        return said

    def await_round(self, process: subprocess.Popen[bytes], round: int, timeout: float = 120) -> None:
        deadline = time.monotonic() + timeout
        while max(self.losses(), default=0) < round:
            self.assertIsNone(process.poll(), self.output.read_text())
            self.assertLess(time.monotonic(), deadline, self.output.read_text())
            time.sleep(0.05)

    def kill(self, program: str) -> None:
        """The last that was started."""
        os.kill(processes_of(program, self.folder)[-1], signal.SIGKILL)

    def check(self, what: str, replicas_of: dict[int, int], size: int) -> None:
        """replicas_of: up to that round, from the round before it in the dict. At a round at which all stopped, other
        replicas report no loss.
        """
        reference, losses = Reference(self.text, size), self.losses()
        worst = 0.0
        first = 1
        for last, replicas in replicas_of.items():
            for round in range(first, last + 1):
                wanted = reference.losses(replicas)
                for replica, want in enumerate(wanted if round != last or last == max(replicas_of) else []):
                    worst = max(worst, abs(losses.get(round, {}).get(replica, want) - want) / want)
            first = last + 1
        self.assertGreaterEqual(len(losses), first - len(replicas_of))
        say(f"fidelity {what}, {first - 1} rounds, worst relative error of a loss {worst:.1e}")
        self.assertLess(worst, 1e-4)


class Parallel(Runs):
    def test_a_pipeline_with_a_kill_of_each_kind(self) -> None:
        size, rounds = 60_000, 50
        with self.run_of("pipeline", size, 2, 2) as process:
            for round, what in ((8, "tributary-worker"), (18, "tributary-server"), (28, "losses_of.py")):
                self.await_round(process, round)
                self.kill(what)
            self.assertEqual(process.wait(150), 0, self.output.read_text())
        self.assertIn("was killed by signal 9", self.output.read_text())
        self.check("pipeline with kills", {rounds: 2}, size)

    def test_tensor_parallel(self) -> None:
        size, rounds = 33_000, 30
        with self.run_of("tensor_parallel", size, 2, 2) as process:
            self.assertEqual(process.wait(150), 0, self.output.read_text())
        self.check("tensor_parallel", {rounds: 2}, size)

    def test_a_state_goes_on_with_another_number_of_replicas(self) -> None:
        size = 80_000  # 36 rounds of 4 replicas
        stopped = []
        for ranks in (2, 1):
            with self.run_of("pipeline", size, 2, ranks) as process:
                self.await_round(process, max(self.losses(), default=0) + 8)
                process.send_signal(signal.SIGINT)
                self.assertEqual(process.wait(60), 75, self.output.read_text())
            stopped.append(int(re.findall(r"stopped after round (\d+)", self.output.read_text())[-1]))
        with self.run_of("pipeline", size, 2, 4) as process:
            self.assertEqual(process.wait(150), 0, self.output.read_text())
        last = max(self.losses())
        self.assertGreater(last, stopped[1] + 5)
        self.check("2, 1 and 4 replicas", {stopped[0]: 2, stopped[1]: 1, last: 4}, size)


class Samples(unittest.TestCase):
    def test_those_of_a_replica_count_once(self) -> None:
        report = RoundReport(
            rank=1,
            world_size=4,
            replicas=2,
            restarts=0,
            resumed=0,
            complete=3,
            rounds=0,
            samples=8,
            compute_ns=1,
            reduce_ns=1,
            wait_ns=1,
        )
        told = as_datagram(report, {"loss": 2.0})
        self.assertEqual((told["samples"], told["global_samples"], told["loss_sum"]), (4, 16, 8.0))


# Two ranks of one replica, of which one has a round before the other is lost. Prints what each question came to.
AGREE = """
import torch
from torch.distributed.device_mesh import init_device_mesh
from tributary.torch._model.parallel import MeshPart

part = MeshPart(init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp")), "dp")
rank = torch.distributed.get_rank()
store = torch.distributed.distributed_c10d._get_default_store()
never = lambda: False
said = []
if rank == 0:
    said.append(part.agree(5, False, lambda: True))
    store.set("asked 5", "1")
store.wait(["asked 5"])
said.append(part.agree(5, False, never))  # the other's first time
if rank == 1:
    said.append(part.agree(6, False, lambda: True))
    store.set("asked 6", "1")
store.wait(["asked 6"])
if rank == 0:
    said.append(part.agree(6, False, never))
for round in range(3, 7):  # the job went back
    said.append(part.agree(round, False, never))
said.append(part.agree(7, rank == 1, never))
print(*said, flush=True)
torch.distributed.barrier()
"""


class Agreement(unittest.TestCase):
    def test_ranks_that_attach_again_answer_those_that_asked(self) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".py") as program:
            program.write(AGREE)
            program.flush()
            said = [output.strip() for output, _ in outputs_of_ranks([program.name], 2, 60, stderr=None)]
        rounds = "False False False False True"  # 3 to 7
        self.assertEqual(said, [f"None False False {rounds}", f"False None {rounds}"])


class Mistakes(WithDaemons):
    def test_each_is_told(self) -> None:
        outputs = [output for output, _ in outputs_of_ranks([PROGRAMS / "parallel_mistakes.py"], 2, 60)]
        told = [dict(line.split(": ", 1) for line in output.splitlines() if ": " in line) for output in outputs]
        expected = {
            "values": "has different initial values: what has the same name is the same tensor",
            "shape": "has shape [4] and [5]",
            "replicas": "only one of them has parameter 'w0': build the same model on both",
            "sharded": "is sharded along 'dp', along which this job has replicas",
            "half": "mesh= and replicate= go together",
            "name": "replicate='data' is no dimension of the mesh",
            "dtensor": "give DistributedOptimizer the mesh",
        }
        for mistake, message in expected.items():
            for rank in range(2):
                with self.subTest(mistake, rank=rank):
                    self.assertIn(message, told[rank][mistake])
        for rank in range(2):
            self.assertIn("w[tp=0]", told[rank]["right"])
            self.assertIn("holders=(1,)", told[rank]["right"])
            # The slice is given by its rank; of the bias, which both have, only the first gives its gradient.
            self.assertIn(f"[({2 * rank}, 1.0), (1, {1.0 - rank})", told[rank]["right"])
            self.assertIn("(0, 1.0)", told[rank]["tied"])
