"""Hugging Face's Trainer as one rank: with DistributedDataParallel ("ddp"), or over Tributary ("tributary").

Lines "round STEP LOSS NORM" have what the Trainer logs on rank 0, "eval EPOCH LOSS" its evaluations. The other argument
is a pause, seconds a step.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import torch
from framework_data import ACCUMULATE, BATCH, CLIP, EPOCHS, RATE, SEED, Net, Samples
from trainer import digest
from transformers import Trainer, TrainerCallback, TrainingArguments

import tributary.torch as trib
from tributary.torch.accelerate import Accelerator
from tributary.torch.hf import TributaryTrainer

KIND, PAUSE = sys.argv[1], float(sys.argv[2])


class Ddp(Trainer):
    """Takes the same batches."""

    def get_train_dataloader(self) -> Any:
        sampler = trib.DistributedSampler(self.train_dataset, seed=SEED, batch_size=BATCH)
        loader = torch.utils.data.DataLoader(
            self.train_dataset, batch_size=BATCH, sampler=sampler, collate_fn=self.data_collator
        )
        return Accelerator.prepare_data_loader(self.accelerator, loader)


class Tell(TrainerCallback):
    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **_: Any) -> None:
        if not state.is_world_process_zero:
            return
        if "loss" in logs:
            print("round", state.global_step, f"{logs['loss']:.6f}", f"{logs['grad_norm']:.6f}", flush=True)
        if "eval_loss" in logs:
            print("eval", f"{logs['epoch']:.3f}", f"{logs['eval_loss']:.6f}", flush=True)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        time.sleep(PAUSE)


def main() -> None:
    torch.set_num_threads(1)
    print("starts", os.environ["RANK"], os.getpid(), flush=True)
    arguments = TrainingArguments(
        "trainer-out",
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=ACCUMULATE,
        max_grad_norm=CLIP,
        learning_rate=RATE,
        warmup_steps=5,
        lr_scheduler_type="cosine",
        weight_decay=0.01,
        optim="adamw_torch",
        bf16=True,
        logging_steps=2,
        eval_strategy="epoch",
        save_strategy="epoch",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        data_seed=SEED,
        remove_unused_columns=False,
        logging_nan_inf_filter=False,
    )
    kind = TributaryTrainer if KIND == "tributary" else Ddp
    trainer = kind(Net(), arguments, train_dataset=Samples(), eval_dataset=Samples(50, seed=9), callbacks=[Tell()])
    trainer.train()
    torch.distributed.barrier()
    print("digest", digest(trainer.model), flush=True)
    if trainer.is_world_process_zero():
        print("saved", *sorted(name for name in os.listdir("trainer-out")), flush=True)


if __name__ == "__main__":
    main()
