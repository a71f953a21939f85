"""The same numbers as torch, and what would change them without a word: against a library in Python."""

from __future__ import annotations

import json
import logging
import sys
import unittest
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from cluster import PROGRAMS, outputs_of_ranks
from torch import nn
from torch.utils.checkpoint import checkpoint
from with_fake import TwoLayers, WithFake

import tributary.torch as trib
from tributary import Error, _library
from tributary._library import Gate, Leave
from tributary.torch._base import log
from tributary.torch._base.log import logger
from tributary.torch._model import declare
from tributary.torch._model.parallel import Part
from tributary.torch._run.program import program
from tributary.torch._steps import sections


class Heads(nn.Module):
    """A trunk, and two heads of which a pass takes one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.one, self.two, self.trunk = nn.Linear(3, 1), nn.Linear(3, 1), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, head: str) -> torch.Tensor:
        return getattr(self, head)(torch.tanh(self.trunk(x)))


def two_ranks() -> Any:
    """As if the job had two replicas of the model."""
    both = mock.patch("tributary.torch._rounds.checks.replicas", return_value=2)
    return mock.patch.multiple("tributary.torch._rounds.same_data", replicas=lambda: 2), both


class Passes(WithFake):
    def sent(self, name: str) -> torch.Tensor:
        """The mean that the servers make of a tensor's last push."""
        index = [tensor.name for tensor in self.library.tensors].index(name)
        push = self.library.pushes[-1]
        return torch.tensor(push["gradients"][index]) / push["weight"]

    def check(self, twin: nn.Module, scale: float = 1.0) -> None:
        for name, parameter in twin.named_parameters():
            want = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad * scale
            torch.testing.assert_close(self.sent(name), want.flatten(), rtol=1e-6, atol=1e-7)

    def test_they_add_up_as_torchs_do(self) -> None:
        for options in ({"accumulate": 4}, {}, {"overlap": "step"}, {"accumulate": 4, "overlap": "step"}):
            for average in (False, True):
                with self.subTest(options, average=average):
                    self.anew()
                    self.net, twin = TwoLayers(), TwoLayers()
                    opt = self.make(average=average, **options)
                    for i in range(4):
                        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(i))
                        (twin(x).square().mean() / 4).backward()
                        held = opt.no_sync() if not options and i < 3 else nullcontext()
                        with held:
                            (self.net(x).square().mean() / (1 if average else 4)).backward()
                    opt.step()
                    self.check(twin)
                    self.assertEqual(self.library.pushes[-1]["weight"], 4 if average else 1)

    def test_the_last_one_may_begin_with_a_head_of_its_own(self) -> None:
        for average in (False, True):
            with self.subTest(average=average):
                self.anew()
                net, twin = Heads(), Heads()
                self.net = net  # type: ignore[assignment]
                opt = self.make(average=average)
                for i, head in enumerate(("one", "one", "one", "two")):
                    x = torch.full((2, 4), 0.1 * i)
                    twin(x, head).sum().backward()
                    with opt.no_sync() if i < 3 else nullcontext():
                        net(x, head).sum().backward()
                opt.step()
                self.check(twin, 0.25 if average else 1.0)
                self.assertEqual(self.library.pushes[-1]["weight"], 4 if average else 1)

    def test_all_of_them_inside_no_sync(self) -> None:
        for overlap in ("step", "backward"):
            with self.subTest(overlap):
                self.anew()
                self.net = TwoLayers()
                opt = self.make(overlap=overlap, average=True)
                for seed in range(2):
                    with opt.no_sync():
                        self.backward(seed)
                opt.step()
                self.assertEqual(self.library.pushes[-1]["weight"], 2)

    def test_passes_that_have_no_parameter_in_common(self) -> None:
        opt = self.make(average=True)
        with opt.no_sync():
            self.net.a(torch.ones(1, 4)).sum().backward()
        self.net.b(torch.ones(1, 3)).sum().backward()
        opt.step()
        self.assertEqual(self.library.pushes[-1]["weight"], 2)

    def test_a_pass_with_reentrant_checkpoints_is_one(self) -> None:
        opt = self.make(average=True, accumulate=2)
        for _ in range(2):
            x = torch.ones(2, 4, requires_grad=True)
            self.net.b(checkpoint(self.net.a, x, use_reentrant=True)).sum().backward()
        opt.step()
        self.assertEqual(self.library.pushes[-1]["weight"], 2)

    def test_compiled_passes_are_counted(self) -> None:
        opt = self.make(average=True, accumulate=2)

        @torch.compile(backend="aot_eager")
        def train(x: torch.Tensor) -> None:
            self.net(x).sum().backward()

        with mock.patch.object(torch._dynamo.config, "compiled_autograd", True):
            for _ in range(2):
                train(torch.ones(2, 4))
        opt.step()
        self.assertEqual(self.library.pushes[-1]["weight"], 2)

    def test_gradients_that_are_zeroed_between_passes_are_gone(self) -> None:
        opt = self.make()
        with opt.no_sync():
            self.backward(0)
        self.net.zero_grad()
        self.backward(1)
        opt.step()
        twin = TwoLayers()
        twin(torch.randn(5, 4, generator=torch.Generator().manual_seed(1))).square().mean().backward()
        self.check(twin)

    def test_no_samples_are_no_gradient(self) -> None:
        for passes in (1, 2):
            with self.subTest(passes=passes):
                self.anew()
                self.net = TwoLayers()
                opt = self.make(accumulate=passes)
                for count in range(passes):
                    opt.samples(count)
                    (self.net(torch.ones(1, 4)).sum() * (1.0 if count else float("nan"))).backward()
                opt.step()
                for gradient in self.library.pushes[-1]["gradients"]:
                    self.assertTrue(bool(torch.tensor(gradient).isfinite().all()))


class Sections(WithFake):
    def job(self, optimizer: torch.optim.Optimizer, given: dict[str, Any]) -> dict[str, Any]:
        job: dict[str, Any] = json.loads(self.make(optimizer, job=given).job)
        return job

    def test_the_optimizers_values_complete_them(self) -> None:
        adamw = torch.optim.AdamW(self.net.parameters(), weight_decay=0.3, betas=(0.8, 0.9))
        for given in ({}, {"name": "adamw"}, {"weight_decay": 0.3}, {"eps": 1e-8, "beta1": 0.8}):
            self._leave()
            optimizer = self.job(adamw, {"optimizer": given})["optimizer"]
            whole = {"name": "adamw", "weight_decay": 0.3, "beta1": 0.8, "beta2": 0.9, "eps": 1e-8}
            self.assertEqual({key: optimizer.get(key) for key in whole}, whole)

    def test_another_value_is_refused(self) -> None:
        adamw = torch.optim.AdamW(self.net.parameters(), weight_decay=0.3)
        with self.assertRaisesRegex(
            ValueError,
            r"weight_decay=0\.3 of the torch optimizer's group 0 contradicts optimizer\.weight_decay = 0\.1 of job=",
        ):
            self.job(adamw, {"optimizer": {"weight_decay": 0.1}})
        with self.assertRaisesRegex(ValueError, r"lr=0\.001 .* contradicts optimizer\.lr = 0\.5 of job="):
            self.job(adamw, {"optimizer": {"lr": 0.5}})
        with self.assertRaisesRegex(ValueError, "name='mine' contradicts job.name = 'other' of job="):
            self.make(adamw, name="mine", job={"job": {"name": "other"}})

    def test_groups_are_completed_too(self) -> None:
        groups = [{"params": self.net.a.parameters()}, {"params": self.net.b.parameters(), "weight_decay": 0.2}]
        sgd = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
        for given in ({"optimizer": {"momentum": 0.9}}, {"groups": [{"momentum": 0.9}]}):
            self._leave()
            self.assertEqual(self.job(sgd, given)["groups"][0]["weight_decay"], 0.2)
        self._leave()
        with self.assertRaisesRegex(ValueError, r"of the torch optimizer's group 1 contradicts groups\[0\]\.momentum"):
            self.job(sgd, {"groups": [{"momentum": 0.5}]})

    def test_local_steps_are_compared_too(self) -> None:
        inner = torch.optim.SGD(self.net.parameters(), lr=0.1)
        for given, words in (
            ({"local": {"steps": 10}}, r"steps=50 contradicts local\.steps = 10 of job="),
            ({"optimizer": {"lr": 0.1}}, r"lr=0\.7 contradicts optimizer\.lr = 0\.1 of job="),
            ({"job": {"mode": "sync"}}, r"mode='local_sgd' contradicts job\.mode = 'sync' of job="),
        ):
            with self.subTest(words), self.assertRaisesRegex(ValueError, words):
                trib.DiLoCo(self.net, inner, outer={"lr": 0.7}, job=given)
        diloco = trib.DiLoCo(self.net, inner, sync_every=10, job={"local": {"steps": 10}, "optimizer": {"lr": 0.1}})
        self.assertEqual(json.loads(diloco._job.text)["optimizer"], {"name": "sgd", "lr": 0.1})

    def test_all_that_toml_can_say(self) -> None:
        text = (
            'job.name = "ä\\"b" # mine\ngate = {clip_norm = 1, loss_scale = \'none\'}\n'
            "[train]\nhidden = [\n 1, # one\n 2]\nseed = 1_000\n[[groups]]\nweight_decay = 0.0\n[[groups]]\n"
        )
        with mock.patch.object(Path, "read_text", return_value=text):
            given = sections.read("job.toml")
        again = sections.Given(json.loads(given.text()), "job=")
        self.assertEqual(again.sections, given.sections)
        self.assertEqual(given.sections["train"], {"hidden": [1, 2], "seed": 1000})
        self.assertEqual(given.sections["job"], {"name": 'ä"b'})
        self.assertEqual([given.sections[f"groups[{i}]"] for i in range(2)], [{"weight_decay": 0.0}, {}])

    def test_numbers_of_other_packages(self) -> None:
        given = sections.read({"gate": {"clip_norm": torch.tensor(0.5)}})
        self.assertEqual(json.loads(given.text())["gate"], {"clip_norm": 0.5})
        with self.assertRaisesRegex(ValueError, r"optimizer\.lr = inf of job=: must be a finite number"):
            sections.read({"optimizer": {"lr": float("inf")}}).text()

    def test_what_is_no_section(self) -> None:
        with self.assertRaisesRegex(ValueError, r"clip_norm = 1\.0 of job=: must be a section"):
            sections.read({"clip_norm": 1.0})


class Scales(WithFake):
    def test_a_scale_without_a_scaled_loss(self) -> None:
        opt = self.make(loss_scale="dynamic")
        scaler = trib.GradScaler()
        loss = self.net(torch.ones(1, 4)).sum()
        scaler.scale(loss).backward()
        scaler.step(opt)
        opt.zero_grad()
        self.backward()
        with self.assertRaisesRegex(RuntimeError, r"no loss of round 2 was multiplied .*GradScaler\(\)\.scale\(loss\)"):
            scaler.step(opt)

    def test_a_scaler_that_is_off(self) -> None:
        opt = self.make(loss_scale="dynamic")
        scaler = trib.GradScaler(enabled=False)
        scaler.scale(self.net(torch.ones(1, 4)).sum()).backward()
        with self.assertRaisesRegex(RuntimeError, "or leave loss_scale= out"):
            scaler.step(opt)

    def test_a_constant_may_be_the_programs_own(self) -> None:
        opt = self.make(loss_scale=1024.0)
        with self.assertLogs(logger, "WARNING") as logs:
            self.train(opt, 2)
        self.assertEqual(len(logs.output), 1)
        self.assertIn("loss_scale='1024', so the servers divide", logs.output[0])

    def test_torchs_scaler_is_known_by_what_it_hands_over(self) -> None:
        opt = self.make()
        torch.amp.GradScaler("cpu", enabled=False).step(opt)
        self.assertEqual(opt.round, 1)

        class Mine(torch.amp.GradScaler):
            """As a subclass in another file, or of another release, is."""

        scaler = Mine("cpu")
        scaler.scale(self.net(torch.ones(1, 4)).sum() * float("inf")).backward()
        with self.assertRaisesRegex(RuntimeError, "use tributary.torch.GradScaler"):
            scaler.step(opt)


class Writes(WithFake):
    def test_a_clip_of_a_ranks_own_gradient(self) -> None:
        opt = self.make(overlap="step")
        with two_ranks()[1], self.assertLogs(logger, "WARNING") as logs:
            for _ in range(2):
                self.backward()
                torch.nn.utils.clip_grad_norm_(self.net.parameters(), 0.01)
                opt.step()
                opt.zero_grad()
        self.assertEqual(len(logs.output), 1)
        self.assertRegex(logs.output[0], r"'b\.bias' was written|'a\.weight' was written")
        self.assertIn("max_grad_norm= to DistributedOptimizer", logs.output[0])

    def test_a_norm_that_is_only_measured(self) -> None:
        opt = self.make(overlap="step")
        with two_ranks()[1], self.assertNoLogs(logger, "WARNING"):
            self.backward()
            torch.nn.utils.clip_grad_norm_(self.net.parameters(), float("inf"))
            opt.step()

    def test_a_gradient_through_data(self) -> None:
        opt = self.make()
        self.backward()
        for parameter in self.net.parameters():
            parameter.grad.data.clamp_(-1e-6, 1e-6)
        with self.assertRaisesRegex(RuntimeError, r"was changed after it was sent in round 1.*through \.data"):
            opt.step()

    def test_a_parameter_through_data(self) -> None:
        opt = self.make()
        for rounds in range(3):
            self.backward()
            if rounds == 2:
                with self.assertRaisesRegex(RuntimeError, r"'a\.weight' was written in place.*through \.data"):
                    opt.step()
                break
            opt.step()
            opt.zero_grad()
            if rounds == 1:
                for parameter in self.net.parameters():
                    parameter.data.clamp_(-0.01, 0.01)

    def test_values_that_are_no_numbers_are_no_writes(self) -> None:
        opt = self.make()
        (self.net(torch.ones(1, 4)).sum() * float("nan")).backward()
        opt.step()
        self.assertEqual(opt.round, 1)

    def test_zeroed_in_place_before_step(self) -> None:
        opt = self.make()
        self.backward()
        want = self.net.a.weight.grad.flatten().clone()
        self.library.events[1] = "lost"
        opt.zero_grad(set_to_none=False)
        opt.step()
        torch.testing.assert_close(torch.tensor(self.library.pushes[0]["gradients"][0]), want)


class SameData(WithFake):
    def warned(self, **options: Any) -> int:
        first, second = two_ranks()
        with first, second, self.assertLogs(logger, "INFO") as logs:
            self.train(self.make(**options), 5)
        return sum("very same gradients" in line for line in logs.output)

    def test_where_the_answer_is_the_mean(self) -> None:
        self.assertEqual(self.warned(step_on="trainers"), 1)

    def test_where_the_gate_tells_the_norm(self) -> None:
        def gate(session: Any, round: int) -> Gate:
            gradients = [torch.tensor(g) for g in self.library.pushes[-1]["gradients"]]
            return Gate(False, float(torch.cat(gradients).norm()) * self.factor, 1.0, 1.0)

        for self.factor, times in ((1.0, 1), (0.7, 0)):
            self.anew()
            with mock.patch("fake.FakeSession.gate", gate):
                self.assertEqual(self.warned(max_grad_norm=1.0), times)

    def test_one_rank_has_nobody_to_agree_with(self) -> None:
        with self.assertLogs(logger, "INFO") as logs:
            self.train(self.make(step_on="trainers"), 5)
        self.assertNotIn("very same", "".join(logs.output))


class Models(WithFake):
    def test_sync_batch_norm(self) -> None:
        self.net = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))
        with self.assertRaisesRegex(TypeError, r"layer '1' is SyncBatchNorm.*call init_process_group\(\) before"):
            self.make()
        with self.assertRaisesRegex(TypeError, "SyncBatchNorm"):
            trib.DiLoCo(self.net, torch.optim.SGD(self.net.parameters(), lr=0.1))
        alone = mock.patch("tributary.torch.optimizer.part_of", return_value=Part())
        with mock.patch("torch.distributed.is_initialized", return_value=True), alone:
            self.make()

    def test_parameters_without_elements(self) -> None:
        self.net.none = nn.Linear(4, 0)
        opt = self.make()
        for _ in range(2):
            (self.net(torch.ones(1, 4)).sum() + self.net.none(torch.ones(1, 4)).sum()).backward()
            opt.step()
            opt.zero_grad()
        self.assertEqual(opt.round, 2)
        self.assertEqual(len(self.library.tensors), 4)

    def test_optimizers_of_sparse_gradients(self) -> None:
        table = nn.Embedding(6, 2, sparse=True)
        with self.assertRaisesRegex(ValueError, "SparseAdam takes sparse gradients only"):
            trib.DistributedOptimizer(table, torch.optim.SparseAdam(table.parameters()))
        model = nn.Sequential(table, nn.Linear(2, 1))
        with self.assertLogs(logger, "WARNING") as logs:
            trib.DistributedOptimizer(model, torch.optim.RMSprop(model.parameters()))
        self.assertIn("the gradients of 0 are sparse, but the mean over ranks is dense: RMSprop gets", logs.output[0])

    def test_names_that_collide(self) -> None:
        class Wraps(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.module, self.weight = nn.Linear(2, 1, bias=False), nn.Parameter(torch.ones(2))

        self.assertEqual(sorted(declare.names_of(Wraps()).values()), ["module.weight", "weight"])
        one, two = nn.Linear(2, 1), nn.Linear(2, 1)
        named = [*one.named_parameters(), *two.named_parameters()]
        with self.assertRaisesRegex(ValueError, "two parameters have the name 'weight'.*names of their own"):
            declare.names_of(named)


class Small(WithFake):
    def test_lines_are_shown_where_the_root_has_handlers(self) -> None:
        before = logger.level, logger.handlers[:], logger.propagate
        try:
            logger.handlers, logger.propagate = [], True
            logger.setLevel(logging.NOTSET)
            with mock.patch.object(logging.getLogger(), "handlers", [logging.NullHandler()]):
                log.show_by_default()
            self.assertTrue(logger.isEnabledFor(logging.INFO))
            self.assertEqual(logger.handlers, [])
            logger.setLevel(logging.ERROR)  # the program has said it
            log.show_by_default()
            self.assertEqual(logger.level, logging.ERROR)
        finally:
            level, logger.handlers, logger.propagate = before
            logger.setLevel(level)

    def test_an_exit_that_is_caught_is_no_failure(self) -> None:
        with mock.patch.object(program, "_failure", None):
            opt = self.make()
            session = self.library.session
            with self.assertRaises(SystemExit):
                sys.exit(2)
            self.train(opt)
            program.end()
        self.assertEqual(session.left, (Leave.FINISHED, ""))

    def test_memory_that_cannot_be_held(self) -> None:
        library = mock.Mock()
        library.functions.tributary_hold_parameters.return_value = None
        library.last_error.return_value = "no /proc"
        with self.assertRaisesRegex(Error, "cannot hold a share .*: no /proc; pass parameters='copy'"):
            _library.ParameterMemory(library, mock.Mock())


class Split(unittest.TestCase):
    """Two ranks of one replica, on gloo."""

    def test_partial_sums_and_optimizers_that_step_here(self) -> None:
        for output, status in outputs_of_ranks([PROGRAMS / "split_numbers.py"], 2, 120):
            self.assertEqual(status, 0, output)
            self.assertEqual(output.count("is torch's"), 5, output)


if __name__ == "__main__":
    unittest.main()
