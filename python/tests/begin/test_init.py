"""Programs that start their ranks themselves: what rank a process is, and how it ends."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import unittest
from unittest import mock

import test_cluster
from cluster import Cluster, environment, value_of
from with_fake import WithFake

import tributary.torch as trib
from tributary import Error
from tributary._errors import Status
from tributary._library import Leave
from tributary.torch._run.program import program

PROGRAM = """
import os, sys
import torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset
import tributary.torch as trib

class Squares(Dataset):
    def __len__(self):
        return 16
    def __getitem__(self, index):
        return torch.full((4,), float(index)), trib.rank()

def main_worker(gpu, ranks, how):
    if how != "without":
        trib.init(rank=gpu, world_size=ranks)
    assert how == "without" or (trib.rank(), trib.world_size()) == (gpu, ranks)
    torch.manual_seed(gpu)
    torch.set_num_threads(1)
    net = torch.nn.Linear(4, 1)
    opt = trib.DistributedOptimizer(net, torch.optim.SGD(net.parameters(), lr=0.001), name="spawned")
    loader = DataLoader(Squares(), batch_size=2, sampler=trib.DistributedSampler(Squares(), seed=1), num_workers=1)
    seen = []
    for _ in trib.epochs(2):
        for x, rank in loader:
            assert (rank == gpu).all()
            seen += x[:, 0].tolist()
            net(x).square().mean().backward()
            opt.step()
            opt.zero_grad()
            if how == "fails" and gpu == 1:
                raise ValueError("rank 1 has had enough")
    total = sum(p.double().sum().item() for p in net.parameters())
    os.write(1, f"seen {gpu} {sorted(seen)}\\nsum {gpu} {total}\\n".encode())  # in one piece: ranks share the file

if __name__ == "__main__":
    if sys.argv[1] == "fork":
        torch.set_num_threads(1)
        ranks = [mp.get_context("fork").Process(target=main_worker, args=(n, 2, "fork")) for n in range(2)]
        for one in ranks:
            one.start()
        for one in ranks:
            one.join()
        sys.exit(max(one.exitcode for one in ranks))
    mp.spawn(main_worker, nprocs=2, args=(2, sys.argv[1]))
"""


class Spawned(test_cluster.WithDaemons):
    def spawn(self, how: str) -> tuple[int, str]:
        program = self.folder / "spawns.py"
        program.write_text(PROGRAM)
        with Cluster(self.folder / how) as cluster:
            variables = environment(TRIBUTARY_SOCKET=cluster.socket_of(0), TRIBUTARY_ATTACH_TIMEOUT="40")
            ended = subprocess.run(
                [sys.executable, program, how],
                env=variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=100,
                text=True,
                check=False,
            )
        return ended.returncode, ended.stdout

    def test_ranks_that_a_program_starts_itself(self) -> None:
        for how in ("spawn", "fork"):
            with self.subTest(how):
                status, said = self.spawn(how)
                self.assertEqual(status, 0, said)
                self.assertEqual(value_of(said, "sum", "0"), value_of(said, "sum", "1"))
                seen = [value_of(said, "seen", rank) for rank in ("0", "1")]
                self.assertEqual(sorted(float(x) for one in seen for x in one.strip("[]").split(",")),
                                 sorted([float(x) for x in range(16)] * 2))  # fmt: skip

    def test_one_that_fails(self) -> None:
        status, said = self.spawn("fails")
        self.assertNotEqual(status, 0)
        self.assertIn("rank 1 has had enough", said)

    def test_ranks_that_nobody_told(self) -> None:
        status, said = self.spawn("without")
        self.assertNotEqual(status, 0)
        self.assertRegex(said, r"is attached already.*\(mp.spawn\) calls tributary.torch.init\(rank=, world_size=\)")


class Init(WithFake):
    def setUp(self) -> None:
        super().setUp()
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
        cleared = {key: value for key, value in os.environ.items() if key.removeprefix("TRIBUTARY_") not in names}
        patch = mock.patch.dict(os.environ, cleared, clear=True)
        patch.start()
        self.addCleanup(patch.stop)

    def test_what_follows(self) -> None:
        trib.init(5, 8, local_world_size=4)
        said = [os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")]
        self.assertEqual(said, ["5", "8", "1", "4", "1"])
        self.assertEqual((trib.rank(), trib.world_size()), (5, 8))
        trib.init(5, 8)  # says the same
        self.make()
        self.assertIsNone(self.library.attaches[-1].topology)  # the library reads the environment

    def test_what_contradicts(self) -> None:
        for arguments, words in (
            ((2, 2), "ranks count from 0, and are below world_size"),
            ((0, 6, 4), "a multiple of it"),
        ):
            with self.assertRaisesRegex(ValueError, words):
                trib.init(*arguments)
        for name in ("RANK", "TRIBUTARY_RANK"):
            with mock.patch.dict(os.environ, {name: "1"}), self.assertRaisesRegex(
                ValueError, r"means RANK=0, and RANK=1 is in the environment.*unset RANK"
            ):  # fmt: skip
                trib.init(0, 2)
        self.make()
        with self.assertRaisesRegex(RuntimeError, "before the first optimizer"):
            trib.init(0, 1)

    def test_an_exception_in_a_process_of_ones_own(self) -> None:
        """As multiprocessing runs it: mp.spawn makes an exit of the exception."""
        for ends, left in (
            (lambda: None, (Leave.FINISHED, "")),
            (lambda: 1 / 0, (Leave.FAILED, "ZeroDivisionError: division by zero")),
        ):
            self.anew()
            self.train(self.make())
            with contextlib.suppress(SystemExit):
                try:
                    try:
                        ends()
                    except ArithmeticError:
                        sys.exit(1)
                finally:
                    program._end_as_child()
            self.assertEqual(self.library.session.left, left)
            program._failure = None

    def test_a_second_rank_that_nobody_launched(self) -> None:
        self.library.refuse = [Error("local_rank 0 of job 'a' is attached already, by pid 7", Status.TOPOLOGY)]
        with self.assertRaisesRegex(Error, r"by pid 7; no launcher has said.*\(mp.spawn\)"):
            self.make()


if __name__ == "__main__":
    unittest.main()
