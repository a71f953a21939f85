"""Hugging Face's Trainer with a GPT-2 that is made from its configuration; nothing comes from a hub.

tributary run --servers 1 --nodes 2 -- python examples/hf_trainer.py

Started by `tributary run`, the Trainer sees one process, and leaves the model alone. (What torchrun sets makes it wrap
the model in DistributedDataParallel.) The DistributedOptimizer clips, so the Trainer's max_grad_norm is 0; it still
writes gradients when it measures their norm after backward, so they leave in step(). A Trainer ends at an epoch that
is empty, as those are that a process which goes on has behind it: each train() is one epoch, and trib.epochs() says
which are left.
"""

import torch
import tributary.torch as trib
from byte_gpt import Bytes, arguments, datasets
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

args = arguments()


class Tokens(Dataset):
    """As the Trainer wants its samples; the model shifts labels itself."""

    def __init__(self, data: Bytes) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = self.data[index][0]
        return {"input_ids": tokens, "labels": tokens}


class Sampler(trib.DistributedSampler):
    def set_epoch(self, epoch: int) -> None:
        """Each train() counts from 0. The sampler knows the job's epoch itself."""


class ShardedTrainer(Trainer):
    def _get_train_sampler(self, *_: object) -> trib.DistributedSampler:
        return sampler

    def log(self, logs: dict[str, float], *rest: object) -> None:
        super().log(logs, *rest)
        if "loss" in logs:
            trib.log(loss=logs["loss"])


torch.set_num_threads(1)
data, held_out = (Tokens(part) for part in datasets(args.text, args.bytes, args.context))
config = GPT2Config(
    vocab_size=256, n_positions=args.context, n_embd=128, n_layer=4, n_head=4, bos_token_id=0, eos_token_id=0
)
model = GPT2LMHeadModel(config).to("cuda" if torch.cuda.is_available() else "cpu")
adamw = torch.optim.AdamW(model.parameters(), lr=1e-3)
opt = trib.DistributedOptimizer(model, adamw, max_grad_norm=1.0, seed=1, overlap="step")
sampler = Sampler(data, seed=1, batch_size=args.batch)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.epochs * len(sampler) // args.batch)
arguments = TrainingArguments(
    "runs/hf_trainer",
    num_train_epochs=1,
    per_device_train_batch_size=args.batch,
    max_grad_norm=0,
    logging_steps=10,
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
    use_cpu=not torch.cuda.is_available(),
)
trainer = ShardedTrainer(model, arguments, train_dataset=data, eval_dataset=held_out, optimizers=(opt, sched))
for _ in trib.epochs(args.epochs):
    trainer.train()
print(f"validation loss {trainer.evaluate()['eval_loss']:.4f}")
