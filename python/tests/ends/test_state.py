"""The optimizer's state that servers hold, in torch's layout: a job's model is trained on without Tributary."""

from __future__ import annotations

import itertools
import subprocess
import unittest
from pathlib import Path

import torch
from cluster import BIN, Cluster
from safetensors.torch import load_file
from test_cluster import WithDaemons, settings
from torch.nn import functional as F
from trainer import OPTIMIZERS, batches, model, optimizer_of, reference

import tributary.torch as trib


def orders(cluster: Cluster) -> list[str]:
    return ["--coordinator-admin", cluster.admin, "--token", str(cluster.token)]


class FullState(WithDaemons):
    def tool(self, *words: str) -> None:
        done = subprocess.run([BIN / "tributary", "checkpoint", *words], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_torch_goes_on_where_the_servers_stopped(self) -> None:
        # All that have state on servers, with one of SGD's formulae.
        names = [name for name in OPTIMIZERS if name not in ("sgd", "momentum", "rmsprop")]
        jobs = [{"name": name, "optimizer": name, "grouped": True} for name in names]
        with Cluster(self.folder, servers=2, nodes=2) as cluster:
            cluster.run(settings(*jobs), timeout=180)
            for job in jobs:
                name = str(job["name"])
                self.tool("save", name, "--dir", str(self.folder), *orders(cluster))
                exported = str(self.folder / f"{name}.safetensors")
                self.tool("export", str(self.folder / f"{name}-round-20"), exported, "--optimizer")
        for job in jobs:
            with self.subTest(job["name"]):
                net, want = model(5), reference({**job, "rounds": 35}, world=2).state_dict()
                exported = str(self.folder / f"{job['name']}.safetensors")
                arrays = load_file(exported)
                net.load_state_dict({key: arrays[key] for key in net.state_dict()})
                opt = optimizer_of(job, net)
                opt.load_state_dict(trib.full_state_dict(net, opt, exported))
                for x, y in itertools.islice(batches(16), 20, 35):
                    opt.zero_grad()
                    F.cross_entropy(net(x), y).backward()
                    opt.step()
                for key, value in net.state_dict().items():
                    self.assertLess(float((value - want[key]).norm() / want[key].norm()), 1e-5, key)

    def test_what_is_no_state_of_this_model(self) -> None:
        job = {"name": "other", "optimizer": "adamw", "rounds": 2}
        exported = self.folder / "other.safetensors"
        with Cluster(self.folder) as cluster:
            cluster.run(settings(job))
            self.tool("save", "other", "--dir", str(self.folder), *orders(cluster))
            checkpoint = str(self.folder / "other-round-2")
            self.tool("export", checkpoint, str(exported))
            net = model()
            opt = torch.optim.AdamW(net.parameters())
            with self.assertRaisesRegex(ValueError, r"has no 0.weight.exp_avg: export .* with --optimizer"):
                trib.full_state_dict(net, opt, exported)
            momentum = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
            with self.assertRaisesRegex(ValueError, r"has no 0.weight.momentum_buffer"):
                trib.full_state_dict(net, momentum, exported)
            with self.assertRaisesRegex(ValueError, "RMSprop does not step on the servers"):
                trib.full_state_dict(net, torch.optim.RMSprop(net.parameters()), exported)
            self.tool("export", checkpoint, str(exported), "--optimizer")
        wide = torch.nn.Sequential(torch.nn.Linear(20, 34))
        with self.assertRaisesRegex(ValueError, r"0.weight.exp_avg has shape \(33, 20\), and the parameter \(34, 20\)"):
            trib.full_state_dict(wide, torch.optim.AdamW(wide.parameters()), exported)
        named = torch.nn.ModuleDict({"head": torch.nn.Linear(2, 2)})
        with self.assertRaisesRegex(ValueError, r"has no head.weight, head.bias: it is another model's"):
            trib.full_state_dict(named, torch.optim.AdamW(named.parameters()), Path(exported))


if __name__ == "__main__":
    unittest.main()
