"""A loop with Accelerate as one rank: with DistributedDataParallel ("ddp"), or over Tributary ("tributary").

Lines "round STEP LOSS NORM" have the mean over all ranks of a step's last batch, "eval EPOCH LOSS" the evaluations. The
other argument is a pause, seconds a step.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from typing import Any

import accelerate
import torch
from framework_data import ACCUMULATE, BATCH, CLIP, EPOCHS, RATE, SEED, Net, Samples
from torch.utils.data import DataLoader
from trainer import digest

import tributary.torch as trib
from tributary.torch.accelerate import Accelerator

KIND, PAUSE = sys.argv[1], float(sys.argv[2])


class Ddp(accelerate.Accelerator):
    """Takes the same batches."""

    def prepare_data_loader(self, data_loader: Any, *arguments: Any, **named: Any) -> Any:
        kind = Accelerator if isinstance(data_loader.sampler, trib.DistributedSampler) else accelerate.Accelerator
        return kind.prepare_data_loader(self, data_loader, *arguments, **named)


def main() -> None:
    torch.set_num_threads(1)
    print("starts", os.environ["RANK"], os.getpid(), flush=True)
    torch.manual_seed(11)
    common = {"gradient_accumulation_steps": ACCUMULATE, "mixed_precision": "bf16", "cpu": True}
    ours = KIND == "tributary"
    accelerator = Accelerator(**common, tributary={"max_grad_norm": CLIP}) if ours else Ddp(**common)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 120)
    data = Samples()
    loader = DataLoader(data, batch_size=BATCH, sampler=trib.DistributedSampler(data, seed=SEED))
    held_out = DataLoader(Samples(50, seed=9), batch_size=8)
    model, optimizer, loader, held_out, scheduler = accelerator.prepare(model, optimizer, loader, held_out, scheduler)
    step = optimizer.optimizer.round if ours else 0
    epochs: Iterable[int] = trib.epochs(EPOCHS) if ours else range(EPOCHS)
    for epoch in epochs:
        model.train()
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(**batch)["loss"]
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    norm = accelerator.clip_grad_norm_(model.parameters(), CLIP)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            mean = accelerator.reduce(loss.detach(), "mean")
            if accelerator.sync_gradients:
                step += 1
                if accelerator.is_main_process:
                    print("round", step, f"{mean.item():.6f}", f"{norm.item():.6f}", flush=True)
                    time.sleep(PAUSE)
        model.eval()
        losses = []
        for batch in held_out:
            with torch.no_grad():
                found = model(**batch)
            each = torch.nn.functional.cross_entropy(found["logits"], batch["labels"], reduction="none")
            losses.append(accelerator.gather_for_metrics(each))
        if accelerator.is_main_process:
            print("eval", epoch, f"{torch.cat(losses).mean().item():.6f}", len(torch.cat(losses)), flush=True)
    print("digest", digest(accelerator.unwrap_model(model)), flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
