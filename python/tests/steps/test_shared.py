"""``parameters="shared"``: a model whose parameters are where the node's worker writes them."""

from __future__ import annotations

import unittest

import torch
from cluster import Cluster, value_of, wait_all
from test_cluster import WithDaemons, settings
from torch import nn
from with_fake import WithFake


class Shared(WithFake):
    def test_parameters_are_the_sessions(self) -> None:
        opt = self.make(parameters="shared")
        for _ in range(3):
            self.backward()
            opt.step()
            opt.zero_grad()
            for parameter, memory in zip(self.net.parameters(), self.library.session.parameters_of):
                self.assertEqual(parameter.data_ptr(), torch.frombuffer(memory, dtype=torch.float32).data_ptr())
        shared = [p.detach().clone() for p in self.net.parameters()]
        opt.finish()
        self.setUp()
        opt = self.make(name="copied")
        for _ in range(3):
            self.backward()
            opt.step()
            opt.zero_grad()
        for one, other in zip(shared, self.net.parameters()):
            self.assertTrue(torch.equal(one, other))

    def test_another_session_has_other_memory(self) -> None:
        opt = self.make(parameters="shared")
        before = self.net.a.weight.data_ptr()
        self.library.events[2] = "gone"
        for _ in range(3):
            self.backward()
            opt.step()
            opt.zero_grad()
        self.assertEqual(len(self.library.sessions), 2)
        self.assertNotEqual(self.net.a.weight.data_ptr(), before)
        opt.finish()
        self.assertTrue(all(torch.isfinite(p).all() for p in self.net.parameters()))

    def test_what_cannot_be_shared_is_copied(self) -> None:
        self.net.a.weight = nn.Parameter(torch.randn(4, 3).t())
        self.net.b.half()
        with self.assertLogs("tributary", "INFO") as logs:
            opt = self.make(parameters="shared")
        self.assertIn(
            "copied, because only contiguous float32 tensors on the CPU can be shared: a.weight, b.weight, b.bias",
            "\n".join(logs.output),
        )
        for parameter in (self.net.a.weight, self.net.a.bias, *self.net.b.parameters()):
            parameter.grad = torch.ones_like(parameter)
        opt.step()
        self.assertEqual(self.net.b.bias.dtype, torch.float16)
        self.assertAlmostEqual(float(self.net.a.bias[0]), self.library.last[1][0])

    def test_written_in_place(self) -> None:
        opt = self.make(parameters="shared")
        self.backward()
        with torch.no_grad():
            self.net.b.bias.zero_()
        with self.assertRaisesRegex(RuntimeError, r"'b.bias' was written in place since the last step"):
            opt.step()

    def test_only_where_the_servers_step(self) -> None:
        with self.assertRaisesRegex(ValueError, r"parameters='shared': this optimizer steps on the trainers"):
            self.make(torch.optim.RMSprop(self.net.parameters()), parameters="shared")
        with self.assertRaisesRegex(ValueError, "parameters='lent': must be 'copy' or 'shared'"):
            self.make(parameters="lent")


class SharedWithDaemons(WithDaemons):
    def test_the_same_bits_through_a_lost_worker_and_after_the_end(self) -> None:
        job = {"name": "shared", "optimizer": "adamw", "rounds": 60, "pause": 0.02}
        with Cluster(self.folder / "copied") as cluster:
            copied = value_of(cluster.run(settings({**job, "pause": 0.0}), ranks_per_node=2)[0], "digest", "shared")
        shares = settings({**job, "options": {"parameters": "shared"}})
        with Cluster(self.folder / "shared") as cluster:
            ranks = [cluster.start_rank(shares, rank, ranks_per_node=2) for rank in range(2)]
            cluster.wait_for_round(0, "shared", 20)
            cluster.kill("worker-0")
            cluster.start_worker(0)
            wait_all(ranks, 90)
            for rank, process in enumerate(ranks):
                log = cluster.log_of(rank)
                self.assertEqual(process.returncode, 0, log)
                self.assertIn("attaching again", log)
                self.assertEqual(value_of(log, "digest", "shared"), copied, log)

    def test_who_writes_harms_nobody_else(self) -> None:
        program = self.program(
            "writes.py",
            "net = model()\n"
            "sgd = torch.optim.SGD(net.parameters(), lr=0.1)\n"
            "opt = trib.DistributedOptimizer(net, sgd, name='writes', parameters='shared')\n"
            "before = digest(net)\n"
            "if trib.rank() == 1:\n"
            "    with torch.no_grad(): net[0].weight.zero_()\n"
            "    print('zeroed x', int(net[0].weight.count_nonzero()), flush=True)\n"
            "else:\n"
            "    time.sleep(1)\n"
            "    print('unharmed x', digest(net) == before, flush=True)\n"
            "net(torch.ones(2, 20)).sum().backward(); opt.step()\n",
        )
        with Cluster(self.folder, store=False) as cluster:
            ranks = [cluster.start_rank([program], rank, ranks_per_node=2) for rank in range(2)]
            wait_all(ranks, 60)
            self.assertEqual(value_of(cluster.log_of(1), "zeroed", "x"), "0")
            self.assertEqual(value_of(cluster.log_of(0), "unharmed", "x"), "True")
            self.assertIn("'0.weight' was written in place since the last step", cluster.log_of(1))


if __name__ == "__main__":
    unittest.main()
