"""Lightning over Tributary: the strategy is named, and nothing else is changed. See docs/from-lightning.md.

tributary run --servers 1 --nodes 2 -- python examples/lightning_strategy.py
"""

from typing import Any

import torch
from byte_gpt import ByteGPT, arguments, datasets
from lightning import LightningModule, Trainer
from torch.nn import functional as F
from torch.utils.data import DataLoader
from tributary.torch.lightning import TributaryStrategy

Batch = tuple[torch.Tensor, torch.Tensor]


class Module(LightningModule):
    def __init__(self, context: int, steps: int) -> None:
        super().__init__()
        self.model = ByteGPT(context=context)
        self.steps = steps

    def loss(self, batch: Batch) -> torch.Tensor:
        x, y = batch
        return F.cross_entropy(self.model(x).flatten(0, 1), y.flatten())

    def training_step(self, batch: Batch, index: int) -> torch.Tensor:
        return self.loss(batch)

    def validation_step(self, batch: Batch, index: int) -> None:
        self.log("validation loss", self.loss(batch), sync_dist=True)

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = torch.optim.AdamW(self.model.groups(), lr=1e-3)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


args = arguments()
torch.set_num_threads(1)
data, held_out = datasets(args.text, args.bytes, args.context)
trainer = Trainer(
    strategy=TributaryStrategy(),
    devices=1,  # of this process
    max_epochs=args.epochs,
    accumulate_grad_batches=2,
    gradient_clip_val=1.0,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
module = Module(args.context, args.epochs * len(data) // (2 * args.batch * trainer.world_size))
trainer.fit(module, DataLoader(data, args.batch, shuffle=True), DataLoader(held_out, args.batch))
if trainer.is_global_zero:
    print(f"validation loss {trainer.callback_metrics['validation loss']:.4f}")
