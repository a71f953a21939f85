"""Hugging Face's Trainer with a GPT-2 that is made from its configuration; nothing comes from a hub.

tributary run --servers 1 --nodes 2 -- python examples/hf_trainer.py

A TributaryTrainer stands in place of the Trainer, and nothing else is changed. See docs/from-trainer.md.
"""

import torch
from byte_gpt import Bytes, arguments, datasets
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments
from tributary.torch.hf import TributaryTrainer

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


torch.set_num_threads(1)
data, held_out = (Tokens(part) for part in datasets(args.text, args.bytes, args.context))
config = GPT2Config(
    vocab_size=256, n_positions=args.context, n_embd=128, n_layer=4, n_head=4, bos_token_id=0, eos_token_id=0
)
training = TrainingArguments(
    "runs/hf_trainer/out",
    num_train_epochs=args.epochs,
    per_device_train_batch_size=args.batch,
    gradient_accumulation_steps=2,
    max_grad_norm=1.0,
    learning_rate=1e-3,
    lr_scheduler_type="cosine",
    logging_steps=10,
    eval_strategy="epoch",
    save_strategy="epoch",
    report_to="none",
    disable_tqdm=True,
    use_cpu=not torch.cuda.is_available(),
)
trainer = TributaryTrainer(GPT2LMHeadModel(config), training, train_dataset=data, eval_dataset=held_out)
trainer.train()
loss = trainer.evaluate()["eval_loss"]
if trainer.is_world_process_zero():
    print(f"validation loss {loss:.4f}")
