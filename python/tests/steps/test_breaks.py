"""Mistakes that break other systems, and the messages to users here (docs/torch-messages.md). Library: in Python."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import time
import unittest
import warnings
from typing import Any, Callable
from unittest import mock

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from with_fake import TwoLayers, WithFake

import tributary.torch as trib
from tributary import Error, Unavailable
from tributary._errors import Status
from tributary._library import Step
from tributary.torch._base.log import logger
from tributary.torch._model.parallel import Part
from tributary.torch._run.program import program


class Steps(WithFake):
    def test_a_step_is_torchs(self) -> None:
        opt = self.make()
        self.train(opt, 5)
        self.check_as_alone(5)
        self.assertEqual(opt.round, 5)

    def test_gradients_leave_during_backward(self) -> None:
        self.make()
        self.backward()
        self.assertEqual(len(self.library.session.said), 4)

    def test_a_closure_runs_first(self) -> None:
        opt = self.make()
        loss = opt.step(self.backward)
        self.assertIsInstance(loss, torch.Tensor)
        self.assertEqual(opt.round, 1)

    def test_autograd_sees_no_write(self) -> None:
        opt = self.make()
        loss = self.net(torch.ones(1, 4)).sum()
        loss.backward(retain_graph=True)
        opt.step()
        with opt.no_sync():
            loss.backward()  # in torch: "modified by an inplace operation"


class Gradients(WithFake):
    def test_two_backward_passes(self) -> None:
        self.make()
        self.backward()
        told = r"'b\.\w+' came twice in round 1.*accumulate=k.*no_sync\(\).*GAN.*overlap='step'.*use_reentrant=False"
        with self.assertRaisesRegex(RuntimeError, told):
            self.backward()

    def test_accumulate_adds_in_a_tree(self) -> None:
        opt = self.make(accumulate=4, average=True)
        parts = []
        for seed in range(4):
            twin = TwoLayers()
            x = torch.randn(5, 4, generator=torch.Generator().manual_seed(seed))
            twin(x).square().mean().backward()
            parts.append(twin.a.weight.grad)
            self.backward(seed)
            self.assertEqual(bool(self.library.session.said), seed == 3)
        opt.step()
        push = self.library.pushes[0]
        self.assertEqual(push["weight"], 4)
        want = (parts[0] + parts[1]) + (parts[2] + parts[3])
        got = torch.tensor(push["gradients"][0]).view(3, 4)
        self.assertTrue(torch.equal(got, want))
        self.assertTrue(torch.equal(self.net.a.weight.grad, want))

    def test_no_sync(self) -> None:
        opt = self.make()
        with opt.no_sync():
            self.backward(0)
            self.backward(1)
        self.assertFalse(self.library.session.said)
        self.backward(2)
        opt.step()
        self.assertEqual(self.library.pushes[0]["weight"], 1)

    def test_no_sync_alone_is_sent_by_step(self) -> None:
        opt = self.make()
        with opt.no_sync():
            self.backward(0)
            self.backward(1)
        opt.step()
        want = self.net.a.weight.grad.flatten()
        torch.testing.assert_close(torch.tensor(self.library.pushes[0]["gradients"][0]), want)

    def test_what_an_epoch_leaves_over_is_sent(self) -> None:
        opt = self.make(accumulate=3)
        for _ in range(2):
            self.backward()
            with self.assertLogs(logger, "WARNING") if opt.round == 0 else self.assertNoLogs(logger, "WARNING"):
                opt.step()
            opt.zero_grad()
        for _ in range(3):
            self.backward()
        with self.assertRaisesRegex(RuntimeError, r"in backward pass 3 \(accumulate=3\): call step\(\) after every 3"):
            self.backward()

    def test_no_sync_beside_accumulate(self) -> None:
        opt = self.make(accumulate=3)
        with self.assertRaisesRegex(RuntimeError, "use one of the two"), opt.no_sync():
            pass

    def test_samples(self) -> None:
        opt = self.make()
        opt.samples(7)
        self.backward()
        with self.assertRaisesRegex(RuntimeError, "before backward"):
            opt.samples(3)
        opt.step()
        push = self.library.pushes[0]
        self.assertEqual(push["weight"], 7)
        got = torch.tensor(push["gradients"][0]).view(3, 4)
        torch.testing.assert_close(got, self.net.a.weight.grad * 7)
        opt.zero_grad()
        self.train(opt)
        self.assertEqual(self.library.pushes[1]["weight"], 1)

    def test_samples_of_every_pass(self) -> None:
        opt = self.make(accumulate=2)
        opt.samples(3)
        self.backward()
        with self.assertRaisesRegex(RuntimeError, "1 times in a round of 2"):
            self.backward()
        self.assertFalse(self.library.session.said)
        del opt

    def test_no_gradient_sends_zeros_and_warns_once(self) -> None:
        opt = self.make()
        for _ in range(2):
            self.net.a(torch.ones(1, 4)).sum().backward()
            if opt.round == 0:
                with self.assertLogs("tributary", "WARNING") as logs:
                    opt.step()
                self.assertRegex(logs.output[0], r"2 of 4 parameters had no gradient: b\.weight, b\.bias")
            else:
                with self.assertNoLogs("tributary", "WARNING"):
                    opt.step()
            opt.zero_grad()
        self.assertEqual(set(self.library.pushes[1]["gradients"][2]), {0.0})

    def test_a_changed_gradient(self) -> None:
        opt = self.make()
        self.backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 0.1)
        with self.assertRaisesRegex(RuntimeError, r"was changed after it was sent in round 1.*max_grad_norm="):
            opt.step()

    def test_a_replaced_gradient(self) -> None:
        opt = self.make()
        self.backward()
        self.net.a.weight.grad = torch.zeros(3, 4)
        with self.assertRaisesRegex(RuntimeError, r"'a\.weight' was changed"):
            opt.step()

    def test_gradients_may_be_changed_with_overlap_step(self) -> None:
        opt = self.make(overlap="step")
        self.backward()
        self.assertFalse(self.library.session.said)
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 0.1)
        want = self.net.a.weight.grad.clone()
        opt.step()
        torch.testing.assert_close(torch.tensor(self.library.pushes[0]["gradients"][0]).view(3, 4), want)

    def test_gradients_of_ones_own(self) -> None:
        opt = self.make()
        for p in self.net.parameters():
            p.grad = torch.ones_like(p)
        opt.step()
        self.assertEqual(set(self.library.pushes[0]["gradients"][0]), {1.0})

    def test_sparse(self) -> None:
        self.net = nn.Sequential(nn.Embedding(6, 3, sparse=True), nn.Linear(3, 2))
        opt = self.make()
        with self.assertLogs("tributary", "WARNING") as logs:
            for _ in range(2):
                self.net(torch.tensor([1, 1, 4])).sum().backward()
                opt.step()
                opt.zero_grad()
        self.assertEqual(len(logs.output), 1)
        self.assertRegex(logs.output[0], "gradient of '0.weight' is sparse: it is sent dense")

    def test_reentrant_checkpoints(self) -> None:
        shared = nn.Linear(4, 4)
        self.net = shared
        opt = trib.DistributedOptimizer(shared, torch.optim.SGD(shared.parameters(), lr=0.1))
        x = torch.ones(2, 4, requires_grad=True)
        twice = checkpoint(shared, checkpoint(shared, x, use_reentrant=True), use_reentrant=True)
        with self.assertRaisesRegex(RuntimeError, "pass use_reentrant=False to it, or overlap='step' here"):
            twice.sum().backward()
        del opt

    def test_reentrant_checkpoints_with_overlap_step(self) -> None:
        shared, twin = nn.Linear(4, 4), nn.Linear(4, 4)
        twin.load_state_dict(shared.state_dict())
        self.net = shared
        opt = self.make(overlap="step")
        x = torch.ones(2, 4, requires_grad=True)
        checkpoint(shared, checkpoint(shared, x, use_reentrant=True), use_reentrant=True).sum().backward()
        twin(twin(x)).sum().backward()
        opt.step()
        got = torch.tensor(self.library.pushes[0]["gradients"][0]).view(4, 4)
        torch.testing.assert_close(got, twin.weight.grad)
        self.assertEqual(self.library.pushes[0]["weight"], 1)

    def test_other_checkpoints(self) -> None:
        shared = nn.Linear(4, 4)
        self.net = shared
        opt = self.make()
        x = torch.ones(2, 4, requires_grad=True)
        checkpoint(shared, checkpoint(shared, x, use_reentrant=False), use_reentrant=False).sum().backward()
        opt.step()
        self.assertEqual(opt.round, 1)

    def test_zero_grad_before_step(self) -> None:
        opt = self.make()
        self.backward()
        opt.zero_grad()
        opt.step()
        self.assertNotEqual(set(self.library.pushes[0]["gradients"][0]), {0.0})


class Parameters(WithFake):
    def test_written_in_place(self) -> None:
        opt = self.make()
        self.train(opt)
        with torch.no_grad():
            self.net.b.weight.clamp_(-0.1, 0.1)
        self.backward()
        with self.assertRaisesRegex(RuntimeError, r"'b\.weight' was written in place since the last step"):
            opt.step()

    def test_loaded_after(self) -> None:
        opt = self.make()
        self.net.load_state_dict(TwoLayers().state_dict())
        self.backward()
        with self.assertRaisesRegex(RuntimeError, "Load weights before the DistributedOptimizer is made"):
            opt.step()

    def test_embedding_with_max_norm(self) -> None:
        self.net = nn.Sequential(nn.Embedding(6, 3, max_norm=0.1), nn.Linear(3, 2))
        opt = self.make()
        self.net(torch.tensor([1, 2])).sum().backward()
        with self.assertRaisesRegex(RuntimeError, r"Embedding\(max_norm=\)"):
            opt.step()

    def test_tied_weights_are_one(self) -> None:
        self.net.c = nn.Linear(3, 2)
        self.net.c.weight = self.net.b.weight
        self.make()
        names = [tensor.name for tensor in self.library.tensors]
        self.assertEqual(names.count("b.weight"), 1)
        self.assertNotIn("c.weight", names)

    def test_frozen_and_left_out(self) -> None:
        self.net.a.bias.requires_grad_(False)
        groups = [self.net.a.weight, self.net.a.bias, self.net.b.weight]
        with self.assertLogs("tributary", "INFO") as logs:
            opt = self.make(torch.optim.SGD(groups, lr=0.1))
        self.assertRegex("\n".join(logs.output), r"left out.*a\.bias, b\.bias")
        self.assertEqual([tensor.name for tensor in self.library.tensors], ["a.weight", "b.weight"])
        self.train(opt)
        self.net.a.bias.requires_grad_(True)
        self.backward()
        with self.assertRaisesRegex(RuntimeError, "was unfrozen, but the tensors of a job are fixed"):
            opt.step()

    def test_add_param_group(self) -> None:
        opt = self.make(torch.optim.SGD(self.net.a.parameters(), lr=0.1))
        with self.assertRaisesRegex(
            RuntimeError, r"add_param_group\(\) was called, but the tensors of a job are fixed"
        ):
            opt.add_param_group({"params": list(self.net.b.parameters())})
        opt.wrapped.add_param_group({"params": list(self.net.b.parameters())})
        self.backward()
        with self.assertRaisesRegex(RuntimeError, "were added to the optimizer's groups"):
            opt.step()

    def test_half_precision(self) -> None:
        self.net = TwoLayers().to(torch.bfloat16)
        opt = self.make()
        self.net(torch.ones(2, 4, dtype=torch.bfloat16)).sum().backward()
        opt.step()
        self.assertEqual(self.net.a.weight.dtype, torch.bfloat16)
        master = torch.tensor(self.library.last[0])
        self.assertTrue(torch.equal(self.net.a.weight.flatten(), master.to(torch.bfloat16)))

    def test_channels_last(self) -> None:
        self.net = nn.Conv2d(3, 2, 2).to(memory_format=torch.channels_last)
        before = self.net.weight.detach().clone()
        opt = self.make()
        first = torch.tensor(self.library.rounds[0][0]).view(2, 3, 2, 2)
        self.assertTrue(torch.equal(first, before))  # in logical order
        x = torch.randn(1, 3, 4, 4).to(memory_format=torch.channels_last)
        self.net(x).square().sum().backward()
        want = before - 0.1 * self.net.weight.grad
        opt.step()
        torch.testing.assert_close(self.net.weight.detach(), want)
        self.assertTrue(self.net.weight.is_contiguous(memory_format=torch.channels_last))

    def test_kinds_that_no_job_has(self) -> None:
        for parameter, words in (
            (nn.Parameter(torch.ones(2, dtype=torch.complex64)), "complex64"),
            (nn.Parameter(torch.ones(2, requires_grad=False), requires_grad=False), "nothing to train"),
        ):
            with self.subTest(words), self.assertRaisesRegex((TypeError, ValueError), words):
                trib.DistributedOptimizer([parameter], torch.optim.SGD([parameter], lr=0.1))
        with self.assertRaisesRegex(ValueError, "not among those of the model"):
            trib.DistributedOptimizer(TwoLayers(), torch.optim.SGD(self.net.parameters(), lr=0.1))

    def test_more_than_servers_keep(self) -> None:
        self.net.double()
        with self.assertLogs(logger, "WARNING") as logs:
            self.make()
        self.assertIn("parameter 'a.weight' is float64: the servers keep and step float32", logs.output[0])

    def test_a_model_that_exchanges_by_itself(self) -> None:
        wrapped = mock.Mock(spec=nn.parallel.DistributedDataParallel)
        with self.assertRaisesRegex(TypeError, "would average gradients a second time"):
            trib.DistributedOptimizer(wrapped, torch.optim.SGD(self.net.parameters(), lr=0.1))

    def test_buffers_are_local(self) -> None:
        self.net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        self.make()
        self.assertEqual(len(self.library.tensors), 4)

    def test_torch_compile(self) -> None:
        compiled = torch.compile(self.net, backend="aot_eager")
        opt = trib.DistributedOptimizer(compiled, torch.optim.SGD(compiled.parameters(), lr=0.1))
        self.assertEqual(self.library.tensors[0].name, "a.weight")
        compiled(torch.ones(2, 4)).sum().backward()
        self.assertEqual(len(self.library.session.said), 4)
        opt.step()
        self.assertEqual(opt.round, 1)


class Rates(WithFake):
    def test_schedulers_take_it(self) -> None:
        opt = self.make()
        self.assertIsInstance(opt, torch.optim.Optimizer)
        self.assertIs(opt.param_groups, opt.wrapped.param_groups)
        scheduler = torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.5)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(3):
                self.backward()
                opt.step()
                scheduler.step()
                opt.zero_grad()
        said = [push["rates"][0] for push in self.library.pushes]
        self.assertEqual(said, [0.1, 0.05, 0.025])
        self.assertEqual([push["settings"] for push in self.library.pushes], [{}, {}, {}])

    def test_every_group_has_its_rate(self) -> None:
        groups = [{"params": self.net.a.parameters()}, {"params": self.net.b.parameters(), "lr": 0.01}]
        opt = self.make(torch.optim.SGD(groups, lr=0.1))
        self.train(opt)
        self.assertEqual(list(self.library.pushes[0]["rates"].values()).count(0.01), 2)
        self.assertEqual([tensor.group for tensor in self.library.tensors], [0, 0, 1, 1])
        self.assertEqual(json.loads(self.library.jobs[0])["groups"], [{"weight_decay": 0.0}])

    def test_a_tensor_as_rate(self) -> None:
        opt = self.make(torch.optim.SGD(self.net.parameters(), lr=torch.tensor(0.25)))
        self.train(opt)
        self.assertEqual(self.library.pushes[0]["rates"][0], 0.25)

    def test_changed_between_backward_and_step(self) -> None:
        opt = self.make()
        self.backward()
        opt.param_groups[0]["lr"] = 0.2
        with self.assertRaisesRegex(
            RuntimeError, r"group 0 changed from .*lr=0\.1.* to .*lr=0\.2.* between backward and step"
        ):
            opt.step()

    def test_decay_and_momentum_are_said_where_they_change(self) -> None:
        groups = [{"params": self.net.a.parameters()}, {"params": self.net.b.parameters(), "momentum": 0.8}]
        opt = self.make(torch.optim.SGD(groups, lr=0.1, momentum=0.9))
        self.train(opt)
        opt.param_groups[1].update(weight_decay=0.25, momentum=0.7)
        self.train(opt)
        self.library.events[3] = "lost"  # another session, which gets the settings again
        self.train(opt, 2)
        opt.param_groups[1].update(weight_decay=0.0, momentum=0.8)
        self.train(opt)
        said = [push["settings"] for push in self.library.pushes]
        self.assertEqual(said, [{}, *3 * [{1: (0.25, 0.7)}], {1: (-1.0, -1.0)}])

    def test_schedulers_of_the_momentum(self) -> None:
        for optimizer, first in (
            (torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9), 0.95),
            (torch.optim.AdamW(self.net.parameters(), lr=0.1), 0.95),
        ):
            with self.subTest(type(optimizer).__name__):
                self.anew()
                opt = self.make(optimizer)
                scheduler = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.1, total_steps=4)
                want = []
                for _ in range(3):
                    group = opt.param_groups[0]
                    want.append(group["betas"][0] if "betas" in group else group["momentum"])
                    self.train(opt)
                    scheduler.step()
                self.assertEqual(want[0], first)
                self.assertEqual([push["settings"][0][1] for push in self.library.pushes], want)

    def test_other_values_are_fixed(self) -> None:
        def sgd(momentum: float) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=momentum)

        for optimizer, key, value in (
            (sgd(0.9), "momentum", 0.0),
            (sgd(0.0), "momentum", 0.9),
            (sgd(0.9), "dampening", 0.5),
            (torch.optim.Adam(self.net.parameters()), "betas", (0.8, 0.99)),
            (torch.optim.Adam(self.net.parameters()), "eps", 1e-6),
        ):
            with self.subTest(f"{key}={value}"):
                self.anew()
                opt = self.make(optimizer)
                self.backward()
                opt.param_groups[0][key] = value
                with self.assertRaisesRegex(RuntimeError, f"{key} of group 0 was .*or pass step_on='trainers'"):
                    opt.step()

    def test_schedule_of_the_job(self) -> None:
        opt = self.make(job={"schedule": {"name": "constant"}})
        self.train(opt)
        self.assertEqual(self.library.pushes[0]["rates"][0], -1.0)

    def test_zero_rate(self) -> None:
        opt = self.make()
        torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 0.0)
        before = self.values()
        self.train(opt)
        self.assertTrue(all(torch.equal(p, q) for p, q in zip(before, self.values())))


class OnTrainers(WithFake):
    def test_an_optimizer_that_only_torch_has(self) -> None:
        with self.assertLogs("tributary", "INFO") as logs:
            opt = self.make(torch.optim.RMSprop(self.net.parameters(), lr=0.01))
        lines = [line for line in logs.output if "RMSprop" in line]
        self.assertEqual(len(lines), 1)
        self.assertRegex(
            lines[0], "the servers have no RMSprop: steps on the trainers, with the servers' mean gradient"
        )
        self.train(opt, 3)
        self.check_as_alone(3, torch.optim.RMSprop, 0.01)
        self.assertTrue(opt.state_dict()["state"])

    def test_flags_that_servers_lack(self) -> None:
        cases: list[tuple[Any, str]] = [
            (torch.optim.Adam(self.net.parameters(), amsgrad=True), "amsgrad"),
            (torch.optim.SGD(self.net.parameters(), lr=0.1, maximize=True), "maximize"),
            (
                torch.optim.SGD(
                    [
                        {"params": self.net.a.parameters(), "momentum": 0.9},
                        {"params": self.net.b.parameters()},
                    ],
                    lr=0.1,
                ),
                "momentum is on in one group and off in another",
            ),
        ]
        for optimizer, words in cases:
            self.library.rounds.clear()
            with self.subTest(words), self.assertLogs("tributary", "INFO") as logs:
                opt = self.make(optimizer)
                self.assertEqual(json.loads(opt.job)["optimizer"]["name"], "mean")
                self.assertIn(words, "\n".join(logs.output))
            opt.finish()

    def test_lbfgs(self) -> None:
        with self.assertRaisesRegex(ValueError, "LBFGS evaluates its closure several times"):
            self.make(torch.optim.LBFGS(self.net.parameters()))

    def test_a_lost_answer_does_not_spoil_the_gradient(self) -> None:
        opt = self.make(step_on="trainers")
        self.library.events[2] = "lost"
        self.train(opt, 3)
        self.assertEqual(opt.round, 3)
        self.check_as_alone(3)

    def test_a_new_process_cannot_go_on(self) -> None:
        opt = self.make(step_on="trainers")
        self.train(opt, 2)
        opt.finish()
        with self.assertRaisesRegex(Error, "at round 2, but its optimizer steps on the trainers"):
            self.make(torch.optim.SGD(self.net.parameters(), lr=0.1), step_on="trainers")


class Losses(WithFake):
    def test_an_open_round_is_pushed_again(self) -> None:
        for event in ("lost", "late", "gone"):
            with self.subTest(event):
                self._leave()
                self.net = TwoLayers()
                self.library.rounds.clear()
                opt = self.make()
                self.library.events[3] = event
                with self.assertLogs("tributary", "INFO") as logs:
                    self.train(opt, 5)
                self.assertRegex("\n".join(logs.output), "rank 0: attaching again in 0 ms: ")
                self.assertEqual(opt.round, 5)
                self.check_as_alone(5)

    def test_accumulated_gradients_are_pushed_again(self) -> None:
        for average in (False, True):
            with self.subTest(average=average):
                self.anew()
                opt = self.make(accumulate=2, average=average)
                self.backward(0)
                self.backward(1)
                self.library.events[1] = "lost"
                opt.step()
                want = self.net.a.weight.grad.flatten()
                torch.testing.assert_close(torch.tensor(self.library.pushes[-1]["gradients"][0]), want)
                self.assertEqual(self.library.pushes[-1]["weight"], 2 if average else 1)
                opt.zero_grad()

    def test_back_with_a_warning(self) -> None:
        opt = self.make()
        scheduler = torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.5)
        self.library.events[4] = "back to 1"
        rates = []
        while opt.round < 5:
            self.backward(opt.round)
            with warnings.catch_warnings(record=True):
                opt.step()
            scheduler.step()
            opt.zero_grad()
            rates.append(self.library.pushes[-1]["rates"][0])
        self.assertEqual(self.library.session.resumed, 1)
        # Rounds 1 to 3, the lost fourth, then 2 to 5 with their own rates.
        self.assertEqual(rates[-4:], [0.05, 0.025, 0.0125, 0.00625])

    def test_back_with_an_exception(self) -> None:
        opt = self.make(on_rewind="raise")
        self.train(opt, 3)
        after_one = self.library.rounds[1]
        self.library.events[4] = "back to 1"
        self.backward()
        with self.assertRaisesRegex(trib.Rewound, "from round 3 to round 1") as caught:
            opt.step()
        self.assertEqual((caught.exception.round, opt.round), (1, 1))
        torch.testing.assert_close(self.net.a.weight.detach().flatten(), torch.tensor(after_one[0]))
        self.assertIsNone(self.net.a.weight.grad)
        self.train(opt)
        self.assertEqual(opt.round, 2)

    def test_views_that_end_while_the_rank_attaches(self) -> None:
        self.library.short = ["node 1 was lost"]
        opt = self.make()
        self.train(opt)
        self.library.events[2] = "lost"
        self.library.short = ["node 2 was lost", "node 3 was lost"]
        self.train(opt)
        self.assertEqual(opt.round, 2)
        self.assertEqual(self.library.retries.asked, [False, True, False, False])
        self.assertTrue(all(session.destroyed for session in self.library.sessions[:-1]))

    def test_patience_ends(self) -> None:
        opt = self.make()
        self.train(opt)
        self.library.events[2] = "gone"
        self.library.refuse = [Unavailable("nobody listens", Status.UNAVAILABLE)] * 20
        self.backward()
        self.library.retries.left = 5
        with self.assertRaisesRegex(Unavailable, r"job '.*': gave up: nobody listens"):
            opt.step()
        self.assertEqual(len(self.library.refuse), 15)

    def test_other_errors_are_not_tried_again(self) -> None:
        opt = self.make()
        self.library.events[1] = "gone"
        self.library.refuse = [Error("another job", Status.CONFIG_MISMATCH)]
        self.backward()
        with self.assertRaisesRegex(Error, "another job"):
            opt.step()

    def test_the_first_attach_is_tried_again(self) -> None:
        self.library.refuse = [Unavailable("server 0 was lost", Status.UNAVAILABLE)] * 2
        with self.assertLogs(logger, "INFO") as logs:
            opt = self.make(attach_timeout=30)
        self.assertEqual([line.rsplit(": ", 1)[-1] for line in logs.output[:2]], ["server 0 was lost"] * 2)
        self.train(opt)
        timeouts = [attach.attach_timeout_ms for attach in self.library.attaches]
        self.assertEqual(timeouts, sorted(timeouts, reverse=True))
        self.assertEqual(timeouts[0], 30_000)

    def test_the_first_attach_takes_as_long_as_it_may(self) -> None:
        for options, variable in (({"attach_timeout": 0.3}, ""), ({}, "0.3")):
            with (
                self.subTest(variable),
                mock.patch.dict(os.environ, TRIBUTARY_ATTACH_TIMEOUT=variable),
            ):
                self.library.retries.pause_s = 0.05
                self.library.attaches.clear()
                self.library.refuse = [Unavailable("nobody listens", Status.UNAVAILABLE)] * 50
                began = time.monotonic()
                with self.assertRaisesRegex(Unavailable, "nobody listens"):
                    self.make(**options)
                self.assertLess(time.monotonic() - began, 5.0)
                self.assertGreater(len(self.library.attaches), 1)
                self.assertLess(len(self.library.attaches), 9)

    def test_other_errors_of_the_first_attach_are_not_tried_again(self) -> None:
        self.library.refuse = [Error("another job", Status.CONFIG_MISMATCH)]
        with self.assertRaisesRegex(Error, "another job"):
            self.make()
        self.assertEqual(len(self.library.attaches), 1)

    def test_whoever_waits_for_others_words_attaches_with_them(self) -> None:
        """Some ranks that hold a model together have the round; one attaches again before it has the round."""
        opt = self.make()
        self.train(opt)
        asked: list[int] = []

        class Silent(Part):
            def agree(part, round: int, stops: bool, over: Callable[[], bool]) -> bool | None:  # noqa: N805
                asked.append(round)
                if len(asked) > 1:
                    return stops
                self.library.session.over = Step.RESTART
                self.library.session.reason = "node 1 was lost"
                return None if over() else stops

        opt._link.part = Silent()
        for back in (0, 1):  # the view begins with the round, or before it
            with self.subTest(back):
                asked.clear()
                at = opt.round

                def lose(_: float, kept: int = at + 2 - back) -> None:
                    del self.library.rounds[kept:]

                with mock.patch.object(program.jobs, "_pause", lose):
                    self.train(opt)
                self.assertEqual(opt.round, at + 1)
                self.assertEqual(asked, [at + 1, at + 1])
                self.assertEqual(len(self.library.rounds), at + 2)
                self.assertEqual(opt._link.rewinds, 0)

    def test_a_job_that_begins_anew_has_its_initial_values(self) -> None:
        opt = self.make()
        first = [list(values) for values in self.library.rounds[0]]
        self.train(opt, 2)

        def lose(*_: object) -> Step:
            self.library.rounds.clear()
            self.library.session.over, self.library.session.reason = Step.RESTART, "server 0 was lost"
            return Step.RESTART

        self.library.session.wait = lose
        self.backward(2)
        opt.step()
        self.assertEqual(opt.round, 0)
        self.assertEqual(self.library.rounds[0], first)


class Resumes(WithFake):
    def test_a_seed_for_each_round(self) -> None:
        def draw(rounds: int) -> list[float]:
            drawn = []
            for _ in range(rounds):
                drawn.append(float(torch.rand(1)))
                self.train(opt)
            return drawn

        opt = self.make(seed=5)
        calm = draw(4)
        opt.finish()
        self._leave()
        del self.library.rounds[3:]
        torch.manual_seed(99)
        opt = self.make(torch.optim.SGD(self.net.parameters(), lr=0.1), seed=5)
        self.assertEqual(draw(2), calm[2:])


class State(WithFake):
    def test_torchs_layout(self) -> None:
        opt = self.make(torch.optim.AdamW(self.net.parameters(), lr=0.1))
        self.train(opt)
        state = opt.state_dict()
        self.assertEqual(state["state"], {})
        self.assertEqual(state["param_groups"][0]["params"], [0, 1, 2, 3])
        self.assertEqual(state["tributary"]["round"], 1)
        state["param_groups"][0]["lr"] = 0.5
        groups = opt.param_groups
        opt.load_state_dict(state)
        self.assertIs(opt.param_groups, groups)
        self.assertIs(opt.wrapped.param_groups, groups)
        self.assertEqual(groups[0]["lr"], 0.5)

    def test_state_that_servers_hold(self) -> None:
        other = torch.optim.AdamW(TwoLayers().parameters(), lr=0.1)
        for p in other.param_groups[0]["params"]:
            p.grad = torch.ones_like(p)
        other.step()
        opt = self.make(torch.optim.AdamW(self.net.parameters(), lr=0.1))
        with self.assertRaisesRegex(ValueError, "which the servers of this job hold"):
            opt.load_state_dict(other.state_dict())

    def test_an_optimizer_that_has_stepped(self) -> None:
        adam = torch.optim.Adam(self.net.parameters())
        self.backward()
        adam.step()
        with self.assertRaisesRegex(ValueError, "has made steps already"):
            self.make(adam)

    def test_wrapped_twice(self) -> None:
        with self.assertRaisesRegex(TypeError, "distributed already"):
            self.make(self.make())

    def test_arguments(self) -> None:
        for options, words in (
            ({"overlap": "no"}, "overlap='no': must be 'backward' or 'step'"),
            ({"accumulate": 0}, "accumulate=0"),
            ({"job": "/no/such/job.toml"}, "/no/such/job.toml"),
        ):
            with self.subTest(words), self.assertRaisesRegex(ValueError, words):
                self.make(**options)


class Scaling(WithFake):
    def test_methods_of_torch(self) -> None:
        opt = self.make(loss_scale="dynamic", max_grad_norm=1.0)
        self.assertEqual(json.loads(opt.job)["gate"], {"clip_norm": 1.0, "loss_scale": "dynamic"})
        scaler = trib.GradScaler()
        loss = self.net(torch.ones(1, 4)).sum()
        scaled = scaler.scale(loss)
        self.assertEqual(float(scaled.detach()), float(loss.detach()) * 1024.0)
        scaled.backward()
        scaler.unscale_(opt)
        scaler.step(opt)
        scaler.update()
        self.assertEqual(opt.round, 1)
        self.assertEqual(scaler.get_scale(), 1024.0)
        scaler.load_state_dict(scaler.state_dict())

    def test_no_loss_scale(self) -> None:
        self.make()
        with self.assertRaisesRegex(Error, "pass loss_scale='dynamic' to DistributedOptimizer"):
            trib.GradScaler().scale(torch.ones(1))

    def test_torchs_own_scaler(self) -> None:
        opt = self.make()
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(self.net(torch.ones(1, 4)).sum()).backward()
        with self.assertRaisesRegex(RuntimeError, "use tributary.torch.GradScaler"):
            scaler.step(opt)


class LocalSteps(WithFake):
    def test_a_round_of_local_steps(self) -> None:
        inner = torch.optim.SGD(self.net.parameters(), lr=0.05)
        with trib.DiLoCo(self.net, inner, sync_every=3, outer={"lr": 1.0}) as outer:
            before = self.values()
            for _ in range(7):
                self.backward()
                inner.step()
                inner.zero_grad()
            self.assertEqual(outer.round, 2)
        self.assertEqual(outer.round, 3)  # what was left
        self.assertEqual(json.loads(self.library.jobs[0])["job"]["mode"], "local_sgd")
        self.assertEqual(json.loads(self.library.jobs[0])["local"], {"steps": 3})
        moved = torch.tensor(self.library.pushes[0]["gradients"][0])
        self.assertEqual(self.library.pushes[0]["weight"], 1)
        self.assertTrue(moved.abs().sum() > 0)
        after = torch.tensor(self.library.rounds[1][0])
        torch.testing.assert_close(after, before[0].flatten() - 0.1 * moved)  # the fake's outer rate

    def test_a_lost_round_is_pushed_again(self) -> None:
        inner = torch.optim.SGD(self.net.parameters(), lr=0.05)
        with trib.DiLoCo(self.net, inner, sync_every=2) as outer:
            self.library.events[1] = "lost"
            for _ in range(4):
                self.backward()
                inner.step()
                inner.zero_grad()
            self.assertEqual(outer.round, 2)
        self.assertTrue(all(torch.isfinite(p).all() for p in self.net.parameters()))

    def test_arguments(self) -> None:
        inner = torch.optim.SGD(self.net.parameters(), lr=0.05)
        with self.assertRaisesRegex(ValueError, "outer has no 'betas'"):
            trib.DiLoCo(self.net, inner, outer={"betas": 1})


class Progress(WithFake):
    def test_a_datagram_a_round(self) -> None:
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
            path = f"{folder}/progress.sock"
            receiver.bind(path)
            receiver.settimeout(5)
            with mock.patch.dict(os.environ, {"TRIBUTARY_PROGRESS": path}):
                opt = self.make()
            loss = self.backward()
            trib.log(loss=loss, accuracy=0.5, samples=4)
            opt.step()
            opt.zero_grad()
            report = json.loads(receiver.recv(4096))
            self.assertEqual((report["round"], report["complete"], report["rank"]), (1, 1, 0))
            self.assertAlmostEqual(report["loss_sum"], float(loss.detach()) * 4)
            self.assertEqual((report["correct"], report["samples"]), (2, 4))
            self.train(opt)
            trib.log(loss=float("nan"))  # after the step
            report = json.loads(receiver.recv(4096))
            self.assertEqual(report["round"], 2)
            self.assertIsNone(report["loss_sum"])
            self.assertNotIn("correct", report)

    def test_the_job_is_told_every_figure(self) -> None:
        opt = self.make()
        loss = self.backward()
        trib.log(loss=loss, perplexity=7.5, samples=4)
        opt.step()
        opt.zero_grad()
        self.assertEqual(self.library.figures, [(1, "loss", float(loss.detach()), 4), (1, "perplexity", 7.5, 4)])
        with self.assertRaisesRegex(ValueError, "33 figures of a round: a job has at most 32"):
            trib.log(**{f"f{i}": 1.0 for i in range(33)})


if __name__ == "__main__":
    unittest.main()
