"""Lightning as one rank: with DistributedDataParallel ("ddp"), or over Tributary ("tributary").

Lines "round STEP LOSS" have the mean over all ranks of each step's last batch, "eval EPOCH LOSS ACCURACY" the
validations. The other argument is a pause, seconds a step.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import torch
import torchmetrics
from framework_data import ACCUMULATE, BATCH, CLIP, EPOCHS, RATE, SEED, Net, Samples
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader
from trainer import digest

import tributary.torch as trib
from tributary.torch.lightning import TributaryStrategy

KIND, PAUSE = sys.argv[1], float(sys.argv[2])


class Module(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()
        self.accuracy = torchmetrics.Accuracy("multiclass", num_classes=5)

    def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
        loss: torch.Tensor = self.net(**batch)["loss"]
        self.log("loss", loss, sync_dist=True)
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        steps = (batch_idx + 1) % ACCUMULATE == 0 or batch_idx + 1 == self.trainer.num_training_batches
        if steps and self.trainer.is_global_zero:
            loss = self.trainer.callback_metrics["loss"]
            print("round", self.trainer.global_step, f"{loss.item():.6f}", flush=True)
            time.sleep(PAUSE)

    def validation_step(self, batch: dict[str, torch.Tensor], index: int) -> None:
        found = self.net(**batch)
        self.accuracy(found["logits"], batch["labels"])
        self.log("accuracy", self.accuracy)
        self.log("eval_loss", found["loss"], sync_dist=True)

    def on_validation_epoch_end(self) -> None:
        metrics = self.trainer.callback_metrics
        if self.trainer.is_global_zero and not self.trainer.sanity_checking:
            print("eval", self.current_epoch, f"{metrics['eval_loss']:.6f}", f"{metrics['accuracy']:.6f}", flush=True)

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=RATE)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def main() -> None:
    torch.set_num_threads(1)
    print("starts", os.environ["RANK"], os.getpid(), flush=True)
    torch.manual_seed(11)
    ours = KIND == "tributary"
    trainer = Trainer(
        strategy=TributaryStrategy() if ours else "ddp",
        accelerator="cpu",
        devices=1,
        num_nodes=1 if ours else 2,
        max_epochs=EPOCHS,
        accumulate_grad_batches=ACCUMULATE,
        gradient_clip_val=CLIP,
        precision="bf16-mixed",
        use_distributed_sampler=ours,
        logger=False,
        callbacks=[ModelCheckpoint("lightning-out", monitor="eval_loss", save_top_k=-1, filename="{epoch}")],
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
    )
    data, held_out = Samples(), Samples(48, seed=9)
    sampler = trib.DistributedSampler(data, seed=SEED, batch_size=BATCH)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    split = None
    if not ours:
        split = torch.utils.data.DistributedSampler(
            held_out, num_replicas=2, rank=int(os.environ["RANK"]), shuffle=False
        )
    module = Module()
    trainer.fit(module, loader, DataLoader(held_out, batch_size=8, sampler=split))
    print("digest", digest(module.net), flush=True)
    if trainer.is_global_zero:
        print("saved", *sorted(os.listdir("lightning-out")), flush=True)


if __name__ == "__main__":
    main()
