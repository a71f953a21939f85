"""Lines of DDP programs (docs/loops.md): what works as it is, or by the way that a message names."""

from __future__ import annotations

import re
import unittest
from typing import Any, Callable
from unittest import mock

import torch
from cluster import REPOSITORY, TESTS
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Subset, TensorDataset, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler
from with_fake import TwoLayers, WithFake

import tributary.torch as trib
from tributary.torch._base import complaints
from tributary.torch._base.log import logger


def by_value(net: TwoLayers) -> None:
    clip_grad_value_(net.parameters(), 0.002)


def by_group(net: TwoLayers) -> None:
    for layer in (net.a, net.b):
        clip_grad_norm_(layer.parameters(), 0.01)


def by_the_largest(net: TwoLayers) -> None:
    clip_grad_norm_(net.parameters(), 0.01, norm_type=float("inf"))


class Clipping(WithFake):
    def steps(self, clip: Callable[[TwoLayers], None], wrap: bool, rounds: int = 3) -> list[torch.Tensor]:
        self.net = TwoLayers()
        inner = torch.optim.AdamW(self.net.parameters(), lr=0.1)
        net = self.net
        inner.register_step_pre_hook(lambda *_: clip(net))
        opt: Any = self.make(inner, step_on="trainers") if wrap else inner
        for seed in range(opt.round if wrap else 0, rounds):
            self.backward(seed)
            opt.step()
            opt.zero_grad()
        return self.values()

    def test_the_mean_is_clipped_as_ddp_does(self) -> None:
        for clip in (by_value, by_group, by_the_largest):
            with self.subTest(clip.__name__):
                self._leave()
                for kept in (self.library.rounds, self.library.kept):
                    kept.clear()
                for mine, torchs in zip(self.steps(clip, wrap=True), self.steps(clip, wrap=False)):
                    torch.testing.assert_close(mine, torchs, rtol=0, atol=0)

    def test_also_in_the_step_that_a_process_which_goes_on_makes_up_for(self) -> None:
        wanted = self.steps(by_value, wrap=False)
        with mock.patch.object(torch.optim.AdamW, "step", autospec=True) as step:
            step.side_effect = KeyboardInterrupt  # killed when the mean of round 1 is there
            with self.assertRaises(KeyboardInterrupt):
                self.steps(by_value, wrap=True)
        self._leave()
        for mine, torchs in zip(self.steps(by_value, wrap=True), wanted):
            torch.testing.assert_close(mine, torchs, rtol=0, atol=0)

    def test_a_hook_that_nobody_would_call(self) -> None:
        inner = torch.optim.SGD(self.net.parameters(), lr=0.1)
        handle = inner.register_step_pre_hook(lambda *_: None)
        with self.assertRaisesRegex(ValueError, "the SGD has hooks .*makes no steps while the servers do: pass"):
            self.make(inner)
        handle.remove()
        opt = self.make(inner)
        inner.register_step_post_hook(lambda *_: None)
        self.backward()
        with self.assertRaisesRegex(RuntimeError, "makes no steps while the servers do"):
            opt.step()

    def test_a_hook_that_comes_late(self) -> None:
        opt = self.make(step_on="trainers")
        opt.wrapped.register_step_pre_hook(lambda *_: None)
        self.backward()
        with self.assertRaisesRegex(RuntimeError, "register it before the DistributedOptimizer is made"):
            opt.step()

    def test_messages_name_the_way(self) -> None:
        opt = self.make()
        self.backward()
        by_value(self.net)
        with self.assertRaisesRegex(RuntimeError, r"was changed.*by value, by group.*register_step_pre_hook\(\)"):
            opt.step()
        self._leave()
        opt = self.make(overlap="step", name="step")
        two = mock.patch("tributary.torch._rounds.checks.replicas", return_value=2)
        with two, self.assertLogs(logger, "WARNING") as logs:
            self.backward()
            by_value(self.net)
            opt.step()
        self.assertRegex(logs.output[0], r"this rank's own.*by value, by group.*register_step_pre_hook\(\)")


class Passes(WithFake):
    def test_a_flag_of_ddps_model(self) -> None:
        """As nanoGPT sets it."""
        self.make()
        self.net.require_backward_grad_sync = False
        self.backward()
        with self.assertRaisesRegex(RuntimeError, r"accumulate=k, or.*no_sync\(\) \(model.require_backward_grad_sync"):
            self.backward()

    def test_sam(self) -> None:
        self.make()
        self.backward()
        self.net.zero_grad()
        with self.assertRaisesRegex(RuntimeError, r"For SAM pass that and step_on='trainers', and give parameters"):
            self.backward()
        self.anew()
        trained = []
        for wrap in (True, False):
            self.net = TwoLayers()
            inner = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
            opt: Any = self.make(inner, overlap="step", step_on="trainers", name="sam") if wrap else inner
            for seed in range(3):
                self.backward(seed)
                before = self.values()
                with torch.no_grad():
                    norm = torch.stack([p.grad.norm() for p in self.net.parameters()]).norm()
                    for p in self.net.parameters():
                        p.add_(p.grad, alpha=0.05 / norm.item())
                opt.zero_grad()
                self.backward(seed)
                with torch.no_grad():
                    for p, value in zip(self.net.parameters(), before):
                        p.copy_(value)
                opt.step()
                opt.zero_grad()
            trained.append(self.values())
        for mine, torchs in zip(*trained):
            torch.testing.assert_close(mine, torchs, rtol=0, atol=0)

    def test_a_graph_of_the_backward_pass(self) -> None:
        captured = mock.patch("torch.cuda.is_current_stream_capturing", return_value=True)
        opt = self.make()
        slot = mock.Mock(parameter=mock.Mock(is_cuda=True))
        with captured, self.assertRaisesRegex(RuntimeError, r"CUDA graph is captured.*make_graphed_callables"):
            opt._checks.check_capture(slot)
        with mock.patch.object(opt._checks, "check_capture", side_effect=RuntimeError(complaints.CAPTURED)):
            with self.assertRaisesRegex(RuntimeError, "CUDA graph"):
                self.backward()
            self.assertEqual(self.library.session.said, {})  # nothing has left


class Kept(WithFake):
    def averaged(self, rounds: int) -> tuple[AveragedModel, Any]:
        opt = self.make()
        average = AveragedModel(self.net, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
        scheduler = SWALR(opt, swa_lr=0.05, anneal_epochs=4)
        trib.keep(average=average)
        while opt.round < rounds:
            self.train(opt)
            average.update_parameters(self.net)
            scheduler.step()
        trib.finish()
        return average, scheduler.state_dict()

    def test_an_averaged_model(self) -> None:
        wanted, schedule = self.averaged(6)
        values = [value.clone() for value in wanted.state_dict().values()]
        self._leave()
        for kept in (self.library.rounds, self.library.kept):
            kept.clear()
        self.net = TwoLayers()
        self.averaged(3)
        self._leave()
        self.net = TwoLayers()
        again, theirs = self.averaged(6)
        for one, other in zip(again.state_dict().values(), values):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
        self.assertEqual(theirs, schedule)

    def test_a_scaler_of_local_steps(self) -> None:
        def scale(steps: int) -> float:
            self.net = TwoLayers()
            inner = torch.optim.SGD(self.net.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
            with trib.DiLoCo(self.net, inner, sync_every=2):
                trib.keep(scaler=scaler)
                scaler.scale(torch.ones(()))
                for _ in range(steps):
                    scaler.scale(self.net(torch.ones(1, 4)).sum()).backward()
                    scaler.step(inner)
                    scaler.update()
                    inner.zero_grad()
            return scaler.get_scale()

        self.assertEqual(scale(4), 16.0)
        trib.finish()
        self._leave()
        self.assertEqual(scale(2), 32.0)


class Data(WithFake):
    def test_a_process_group_that_is_not_there(self) -> None:
        self.make()
        with self.assertRaisesRegex(ValueError, "Default process group has not been initialized"):
            torch.distributed.all_reduce(torch.ones(1))

    def goes_on(self, loader: Any, batches: Callable[[Any], Any] = lambda loader: loader) -> None:
        """In a process whose job has had a round."""
        self.train(self.make())
        self._leave()
        self.net = TwoLayers()
        opt = self.make()
        for x in batches(loader):
            self.net(x).square().mean().backward()
            opt.step()
            opt.zero_grad()

    def test_a_loader_whose_place_is_not_known_says_so(self) -> None:
        loader = DataLoader(torch.ones(8, 4), batch_size=4, sampler=WeightedRandomSampler([1.0] * 8, 8))
        with self.assertLogs(logger, "WARNING") as logs:
            self.goes_on(loader)
        told = [line for line in logs.output if "begins its data anew" in line]
        self.assertEqual(len(told), 1)
        self.assertRegex(told[0], r"after round 1, .*tributary.torch.batches\(loader\).*DistributedSampler")

    def test_one_whose_place_is_known_does_not(self) -> None:
        loader = DataLoader(torch.ones(8, 4), batch_size=4)
        with self.assertNoLogs(logger, "WARNING"):
            self.goes_on(loader, trib.batches)

    def test_an_evaluation_by_torchs_sampler(self) -> None:
        """Padded; or a strided subset, which counts each sample once."""
        whole = TensorDataset(torch.arange(7.0))
        seen, exact = [], []
        for rank in range(2):
            sampler = DistributedSampler(whole, num_replicas=2, rank=rank, shuffle=False)
            seen += [x for (batch,) in DataLoader(whole, batch_size=2, sampler=sampler) for x in batch.tolist()]
            part = Subset(whole, range(rank, len(whole), 2))
            exact += [x for (batch,) in DataLoader(part, batch_size=2) for x in batch.tolist()]
        self.assertEqual(sorted(exact), [float(n) for n in range(7)])
        self.assertEqual((len(seen), set(seen)), (8, set(exact)))

    def test_training_by_torchs_sampler(self) -> None:
        """Continues in its epoch, because the order follows from it."""

        def run(stops_after: int = 0) -> list[list[float]]:
            self.net = TwoLayers()
            opt, given = self.make(), []
            data = torch.arange(32.0).view(8, 4) / 32
            sampler = DistributedSampler(data, num_replicas=1, rank=0, seed=3)
            for epoch in trib.epochs(2):
                sampler.set_epoch(epoch)
                for x in trib.batches(DataLoader(data, batch_size=2, sampler=sampler)):
                    given.append(x[:, 0].tolist())
                    self.net(x).square().mean().backward()
                    opt.step()
                    opt.zero_grad()
                    if opt.round == stops_after:
                        return given
            return given

        whole = run()
        for stops in (3, 6):
            self._leave()
            for kept in (self.library.rounds, self.library.kept, self.library.answers):
                kept.clear()
            first = run(stops)
            self._leave()
            again = run()
            self.assertEqual([*first[:stops], *again[-(8 - stops) :]], whole)
            self.assertLessEqual(len(first) + len(again), 8 + 1)  # its last round once more


class Table(unittest.TestCase):
    def test_each_row_has_a_test(self) -> None:
        """Every row of docs/loops.md names a test that exists."""
        text = (REPOSITORY / "docs" / "loops.md").read_text()
        rows = [line for line in text.splitlines() if line.startswith("| ")][2:]
        self.assertGreater(len(rows), 30)
        for row in rows:
            names = re.findall(r"`(test_\w+)\.(test_\w+)`", row.rsplit("|", 2)[1])
            self.assertTrue(names, row)
            for module, name in names:
                (source,) = TESTS.glob(f"*/{module}.py")
                self.assertIn(f"    def {name}(self", source.read_text(), row)


if __name__ == "__main__":
    unittest.main()
