"""Lightning through a strategy, which puts a DistributedOptimizer round the module's optimizer, and does nothing else.

tributary run --servers 1 --nodes 2 -- python examples/lightning_strategy.py
"""

from typing import Any

import torch
import tributary.torch as trib
from byte_gpt import ByteGPT, arguments, datasets, validation_loss
from lightning import LightningModule, Trainer
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch.nn import functional as F
from torch.utils.data import DataLoader


class TributaryStrategy(SingleDeviceStrategy):
    """Each rank has one device, and the job joins them.

    Args:
        options: of the DistributedOptimizer.
    """

    strategy_name = "tributary"

    def __init__(self, device: str = "cpu", **options: Any) -> None:
        super().__init__(device)
        self._options = options

    @property
    def is_global_zero(self) -> bool:
        return trib.rank() == 0

    def setup_optimizers(self, trainer: Trainer) -> None:
        super().setup_optimizers(trainer)
        (optimizer,) = self.optimizers
        assert self.lightning_module is not None
        wrapped = trib.DistributedOptimizer(self.lightning_module, optimizer, **self._options)
        self.optimizers = [wrapped]
        for config in self.lr_scheduler_configs:
            config.scheduler.optimizer = wrapped


class Module(LightningModule):
    def __init__(self, context: int, rounds: int) -> None:
        super().__init__()
        self.model = ByteGPT(context=context)
        self.rounds = rounds

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> torch.Tensor:
        x, y = batch
        loss = F.cross_entropy(self.model(x).flatten(0, 1), y.flatten())
        trib.log(loss=loss)
        return loss

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = torch.optim.AdamW(self.model.groups(), lr=1e-3)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.rounds)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


args = arguments()
torch.set_num_threads(1)
data, held_out = datasets(args.text, args.bytes, args.context)
sampler = trib.DistributedSampler(data, seed=1, batch_size=args.batch)
loader = DataLoader(data, batch_size=args.batch, sampler=sampler, drop_last=True)
module = Module(args.context, args.epochs * len(loader))
trainer = Trainer(
    strategy=TributaryStrategy(max_grad_norm=1.0),
    max_epochs=args.epochs,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(module, loader)
print(f"validation loss {validation_loss(module.model, held_out):.4f}")
