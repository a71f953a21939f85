"""Errors to users of Accelerate, Hugging Face's Trainer and Lightning, before training where possible."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import GradientAccumulationPlugin
from framework_data import Net, Samples
from lightning import LightningModule, Trainer
from torch.utils.data import DataLoader
from transformers import TrainingArguments
from with_fake import WithFake

import tributary.torch as trib
from tributary.torch.accelerate import Accelerator
from tributary.torch.hf import TributaryTrainer
from tributary.torch.lightning import TributaryStrategy


class Imports(unittest.TestCase):
    def test_only_on_demand(self) -> None:
        names = ("accelerate", "transformers", "lightning")
        text = (
            f"import sys, tributary.torch as t; print([n for n in {names} if n in sys.modules]); t.hf.TributaryTrainer"
        )
        found = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
        self.assertEqual(found.stdout, "[]\n")


class InFolder(WithFake):
    def setUp(self) -> None:
        super().setUp()
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        self.addCleanup(GradientState._reset_state)
        self.addCleanup(AcceleratorState._reset_state, True)
        self.model = Net()


class WithAccelerate(InFolder):
    def accelerator(self, **options: Any) -> Accelerator:
        return Accelerator(cpu=True, **options)

    def prepared(self, **options: Any) -> tuple[Accelerator, Any, Any, Any]:
        accelerator = self.accelerator(**options)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        loader = DataLoader(Samples(), batch_size=8, shuffle=True)
        return accelerator, *accelerator.prepare(optimizer, loader, self.model)

    def test_what_cannot_be_is_refused_when_it_is_made(self) -> None:
        for options, words in (
            ({"mixed_precision": "fp16"}, "Use bf16"),
            (
                {"gradient_accumulation_plugin": GradientAccumulationPlugin(num_steps=2, sync_each_batch=True)},
                "leave it",
            ),
            ({"tributary": {"accumulate": 2}}, "gradient_accumulation_steps="),
        ):
            with self.subTest(words), self.assertRaisesRegex(ValueError, words):
                self.accelerator(**options)
            AcceleratorState._reset_state(True)

    def test_an_optimizer_without_its_model(self) -> None:
        with self.assertRaisesRegex(ValueError, "give it the model, too"):
            self.accelerator().prepare(torch.optim.SGD(self.model.parameters(), lr=0.1))

    def test_a_loader_that_shuffles_is_dealt_out(self) -> None:
        _, optimizer, loader, _ = self.prepared()
        self.assertIsInstance(optimizer.optimizer, trib.DistributedOptimizer)
        self.assertIsInstance(loader.batch_sampler.sampler, trib.DistributedSampler)
        self.assertEqual(sum(1 for _ in loader), len(Samples()) // 8)

    def test_the_norm_is_there_after_the_step(self) -> None:
        accelerator, optimizer, loader, model = self.prepared(tributary={"max_grad_norm": 1.0})
        batch = next(iter(loader))
        accelerator.backward(model(**batch)["loss"])
        norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
        self.assertTrue(norm.isnan())
        optimizer.step()
        self.assertGreater(norm, 0)

    def test_other_clipping(self) -> None:
        accelerator, _, _, model = self.prepared(tributary={"max_grad_norm": 1.0})
        with self.assertRaisesRegex(ValueError, r"max_grad_norm=1.0.*tributary=\{'max_grad_norm': 0.5\}"):
            accelerator.clip_grad_norm_(model.parameters(), 0.5)
        with self.assertRaisesRegex(ValueError, "Clip the norm"):
            accelerator.clip_grad_value_(model.parameters(), 0.5)

    def test_a_checkpoint_to_go_on_from(self) -> None:
        accelerator, *_ = self.prepared()
        with self.assertRaisesRegex(RuntimeError, "goes on by itself"):
            accelerator.load_state(self.folder)


class WithTrainer(InFolder):
    def trainer(self, **options: Any) -> TributaryTrainer:
        arguments = TrainingArguments(
            self.folder,
            num_train_epochs=1,
            per_device_train_batch_size=8,
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
            save_strategy="no",
            remove_unused_columns=False,
            **options,
        )
        return TributaryTrainer(self.model, arguments, train_dataset=Samples())

    def test_what_cannot_be_is_refused_when_it_is_made(self) -> None:
        for options, words in (
            ({"fp16": True}, "Use bf16"),
            ({"auto_find_batch_size": True}, "give per_device_train_batch_size"),
        ):
            with self.subTest(words), self.assertRaisesRegex(ValueError, words):
                self.trainer(**options)

    def test_a_checkpoint_at_the_beginning(self) -> None:
        with self.assertRaisesRegex(ValueError, "the job is at its beginning.*from_pretrained"):
            self.trainer().train(resume_from_checkpoint=self.folder)

    def test_without_clipping_no_norm_is_logged(self) -> None:
        trainer = self.trainer(max_grad_norm=0, logging_steps=5)
        trainer.train()
        logged = [entry for entry in trainer.state.log_history if "loss" in entry]
        self.assertEqual(len(logged), len(Samples()) // 8 // 5)
        self.assertNotIn("grad_norm", logged[0])

    def test_a_job_that_goes_back(self) -> None:
        trainer = self.trainer(max_grad_norm=1.0, logging_steps=1)
        self.library.events = {20: "back to 12"}
        trainer.train()
        steps = len(Samples()) // 8
        self.assertEqual(len(self.library.rounds) - 1, steps)
        self.assertEqual(trainer.state.global_step, steps)
        logged = [entry["step"] for entry in trainer.state.log_history if "loss" in entry]
        self.assertEqual(logged, list(range(1, steps + 1)))

    def test_another_order_of_samples(self) -> None:
        with self.assertRaisesRegex(ValueError, "LengthGroupedSampler"):
            trainer = self.trainer(train_sampling_strategy="group_by_length")
            trainer.train_dataset = [{"input_ids": [1]} for _ in range(20)]
            trainer.train()


class Module(LightningModule):
    def __init__(self, optimizers: int) -> None:
        super().__init__()
        self.net = Net()
        self.count = optimizers
        self.automatic_optimization = optimizers == 1

    def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
        loss: torch.Tensor = self.net(**batch)["loss"]
        return loss

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(self.parameters(), lr=0.1) for _ in range(self.count)]


class WithLightning(InFolder):
    def fit(self, optimizers: int = 1, clip: float | None = None, checkpoint: Any = None, **options: Any) -> Trainer:
        trainer = Trainer(
            strategy=TributaryStrategy(),
            accelerator="cpu",
            devices=1,
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=self.folder,
            **options,
        )
        loader = DataLoader(Samples(), batch_size=8, shuffle=True)
        trainer.fit(Module(optimizers), loader, ckpt_path=checkpoint)
        return trainer

    def test_what_cannot_be_is_refused_before_training(self) -> None:
        for options, words in (
            ({"optimizers": 2}, "2 optimizers.*write the loop yourself"),
            ({"gradient_clip_val": 1.0, "gradient_clip_algorithm": "value"}, "say 'norm'"),
        ):
            with self.subTest(words), self.assertRaisesRegex(ValueError, words):
                self.fit(**options)
        self.assertEqual(self.library.rounds[1:], [])
        with self.assertRaisesRegex(ValueError, "accumulate_grad_batches="):
            TributaryStrategy(accumulate=2)

    def test_fp16(self) -> None:
        strategy = TributaryStrategy()
        trainer = Trainer(strategy=strategy, accelerator="cpu", devices=1, logger=False)
        strategy.precision_plugin.precision = "16-mixed"  # the CPU has none
        with self.assertRaisesRegex(ValueError, "'bf16-mixed'"):
            strategy.setup(trainer)

    def test_a_checkpoint_to_go_on_from(self) -> None:
        trainer = self.fit()
        path = Path(self.folder) / "it.ckpt"
        trainer.save_checkpoint(path)
        self.library.rounds.clear()
        self._leave()
        with self.assertRaisesRegex(ValueError, "load_from_checkpoint"):
            self.fit(checkpoint=path)

    def test_rounds_are_the_trainers_steps(self) -> None:
        self.assertEqual(self.fit(accumulate_grad_batches=2).global_step, 18)
        self.assertEqual(len(self.library.rounds) - 1, 18)


if __name__ == "__main__":
    unittest.main()
