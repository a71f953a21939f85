"""One rank for the comparisons of `tributary bench torch` and bench/torch_step.py: the same model and batches, whatever
exchanges the gradients.

Prints how far it is, and at the end one JSON object: {digest (of the parameters), model_bytes, begin_ns[], end_ns[] (of
each measured step), step_cpu_ms, forward_ms, backward_ms, update_ms (from the end of the backward pass to the next
step; with CUDA, of what the host does for them), private_mb (not shared with any other process), peak_rss_mb,
device_mb (what torch had of the GPU at most), gradients ("host", or "device" where the worker lends memory of the
GPU), curve [{step, seconds (of training), loss}]}.
The loss is of this rank's share of the pieces held out: it is the mean over ranks that counts.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

HERE = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(HERE / folder) for folder in ("examples", "python") if (HERE / folder).is_dir()]

GATE_PATIENCE = 120  # seconds, as in tools/lab/gate.h
CONTEXT = 128
HELD_OUT = 128  # pieces, over all ranks
ALONE = "alone"  # torch without any exchange
HOW = (ALONE, "ddp", "ddp-fp16", "ddp-powersgd", "fsdp2", "tributary", "diloco")
SPLIT = ("forward_ms", "backward_ms", "update_ms")
ONE_BUCKET = 1 << 12  # MB, more than any model here has


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--how", choices=HOW, required=True)
    parser.add_argument("--model", choices=("gpt", "resnet"), default="gpt")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--batch", type=int, default=4, help="samples of a rank")
    parser.add_argument("--steps", type=int, default=20, help="measured")
    parser.add_argument("--warmup", type=int, default=4, help="steps before them")
    parser.add_argument("--evaluate-every", type=int, default=0, help="steps; 0: never")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--clip", type=float, default=0.0, help="global norm; 0: none")
    parser.add_argument("--sync-every", type=int, default=25, help="steps of a round of DiLoCo")
    parser.add_argument("--powersgd-rank", type=int, default=4)
    parser.add_argument("--set", action="append", default=[], help="a key of the job, as encoding.push=int8")
    parser.add_argument("--gate", default="", help="folder where ranks meet before and after the measured steps")
    parser.add_argument("--out", default="", help="a file for rank 0's JSON, too")
    return parser.parse_args()


def place(name: str) -> int:
    """RANK or WORLD_SIZE of this process, as torchrun or `tributary run` say it."""
    alone = "1" if name == "WORLD_SIZE" else "0"
    return int(os.environ.get(f"TRIBUTARY_{name}", os.environ.get(name, alone)))


class Text:
    """Pieces of a text in one shuffled order, the same for every way to train: a step's batches are its next ones."""

    def __init__(self, rank: int, ranks: int, batch: int, device: torch.device) -> None:
        from byte_gpt import ByteGPT, datasets

        self.model: nn.Module = ByteGPT(layers=6, width=384, heads=6, context=CONTEXT).to(device)
        self.device = device
        self.data, self.held_out = datasets(None, 2 << 20, CONTEXT)
        self.order = torch.randperm(len(self.data), generator=torch.Generator().manual_seed(1)).tolist()
        self.rank, self.ranks, self.batch = rank, ranks, batch

    def batch_of(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        first = (step * self.ranks + self.rank) * self.batch
        x, y = self._stack(self.data, [self.order[(first + i) % len(self.order)] for i in range(self.batch)])
        return x, y.flatten()

    @torch.no_grad()
    def loss(self) -> float:
        """Loss on this rank's share of the held-out data."""
        pieces = torch.linspace(0, len(self.held_out) - 1, HELD_OUT).long().tolist()[self.rank :: self.ranks]
        x, y = self._stack(self.held_out, pieces)
        return float(F.cross_entropy(self.model(x).flatten(0, 1), y.flatten()))

    def _stack(self, data: Any, pieces: list[int]) -> list[torch.Tensor]:
        return [torch.stack(side).to(self.device) for side in zip(*(data[i] for i in pieces))]


class Images:
    """Noise in the shape of Fashion-MNIST: for the time of a step, not for its loss."""

    def __init__(self, rank: int, batch: int, device: torch.device) -> None:
        from fashion_resnet import resnet18

        self.model: nn.Module = resnet18().to(device)
        noise = torch.Generator().manual_seed(rank)
        self.sample = (
            torch.randn(batch, 1, 28, 28, generator=noise).to(device),
            torch.randint(10, (batch,), generator=noise).to(device),
        )

    def batch_of(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.sample

    def loss(self) -> float:
        raise ValueError("resnet trains on noise: there is no loss to look at; leave --evaluate-every out")


def distributed(args: argparse.Namespace, model: nn.Module) -> nn.Module:
    """The model as torch's own ways to train it in several processes have it."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    if args.how == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        for block in getattr(model, "blocks", []):
            fully_shard(block)
        return fully_shard(model)
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd

    # PowerSGD exchanges again in callbacks, whose order over several buckets gloo's ranks do not agree on: they end
    # with "Received data size doesn't match expected size".
    buckets = {"bucket_cap_mb": ONE_BUCKET} if args.how == "ddp-powersgd" else {}
    ddp = nn.parallel.DistributedDataParallel(model, **buckets)
    if args.how == "ddp-fp16":  # torch has the hook for bf16 on GPUs only
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif args.how == "ddp-powersgd":
        state = powersgd.PowerSGDState(
            process_group=None, matrix_approximation_rank=args.powersgd_rank, start_powerSGD_iter=2
        )
        ddp.register_comm_hook(state, powersgd.powerSGD_hook)
    return ddp


def job_of(args: argparse.Namespace) -> dict[str, dict[str, str]]:
    sections: dict[str, dict[str, str]] = {}
    for line in args.set:
        key, value = line.split("=", 1)
        section, name = key.split(".", 1)
        sections.setdefault(section, {})[name] = value
    return sections


class Ways:
    """The model to call, and what a step does after the backward pass."""

    def __init__(self, args: argparse.Namespace, model: nn.Module) -> None:
        self.called: Callable[[torch.Tensor], torch.Tensor] = model
        self.around: AbstractContextManager[Any] = nullcontext()
        self.clip = args.clip if args.how not in ("tributary", "diloco") else 0.0
        self.model = model
        if args.how.startswith(("ddp", "fsdp")):
            self.called = distributed(args, model)
        groups = model.groups() if hasattr(model, "groups") else model.parameters()
        self.opt: torch.optim.Optimizer = torch.optim.AdamW(groups, lr=args.lr)
        if args.how == "tributary":
            import tributary.torch as trib

            clip = {"max_grad_norm": args.clip} if args.clip > 0 else {}
            self.opt = trib.DistributedOptimizer(model, self.opt, job=job_of(args) or None, **clip)
        elif args.how == "diloco":
            import tributary.torch as trib

            self.around = trib.DiLoCo(model, self.opt, sync_every=args.sync_every, job=job_of(args) or None)

    def step(self) -> None:
        if self.clip > 0:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.opt.step()
        self.opt.zero_grad()

    @property
    def gradients(self) -> str:
        link = getattr(self.opt, "_link", None) or getattr(self.around, "_link", None)
        return "device" if link is not None and link.view.on_device else "host"


def pass_gate(folder: str, name: str, rank: int) -> None:
    if not folder:
        return
    (Path(folder) / f"{name}.{rank}").write_text("\n")
    until = time.monotonic() + GATE_PATIENCE
    while not (Path(folder) / f"{name}.open").exists():
        if time.monotonic() > until:
            sys.exit(f"the gate {name!r} in {folder} was not opened")
        time.sleep(0.002)


def private_mb() -> float:
    """Memory of this process that is not shared, now."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) / 1024


def digest_of(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for parameter in model.parameters():
        whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
        digest.update(whole.detach().contiguous().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def main() -> None:
    args = arguments()
    rank, ranks = place("RANK"), place("WORLD_SIZE")
    torch.manual_seed(1)
    torch.set_num_threads(1)
    # Alone, all compute the same, so that they end with one digest as the others do.
    own = (0, 1) if args.how == ALONE else (rank, ranks)
    from rank_device import rank_device

    device = torch.device("cpu") if args.device == "cpu" else rank_device()
    task = Text(*own, args.batch, device) if args.model == "gpt" else Images(own[0], args.batch, device)
    # The time ends when the GPU is done, not when it was given the work.
    there = torch.cuda.synchronize if args.device == "cuda" else lambda: None
    parameters = sum(p.numel() for p in task.model.parameters())
    ways = Ways(args, task.model)
    begins: list[int] = []
    ends: list[int] = []
    busy: list[float] = []
    split: list[list[float]] = []
    curve: list[dict[str, float]] = []
    trained = 0.0
    with ways.around:
        for step in range(args.warmup + args.steps):
            if step == args.warmup:
                pass_gate(args.gate, "before", rank)
            x, y = task.batch_of(step)
            there()
            began, used = time.monotonic_ns(), time.process_time()
            loss = F.cross_entropy(ways.called(x).flatten(0, -2), y)
            forward = time.monotonic_ns()
            loss.backward()
            backward = time.monotonic_ns()
            ways.step()
            there()
            ended = time.monotonic_ns()
            trained += 1e-9 * (ended - began)
            if step >= args.warmup:
                begins.append(began)
                ends.append(ended)
                busy.append(1000 * (time.process_time() - used))
                split.append([1e-6 * (forward - began), 1e-6 * (backward - forward), 1e-6 * (ended - backward)])
            if args.evaluate_every and (step + 1) % args.evaluate_every == 0:
                # All ranks at once, so that none begins the next step before the others.
                curve.append({"step": step + 1, "seconds": trained, "loss": task.loss()})
                print(f"step {step + 1}: loss {curve[-1]['loss']:.4f}", flush=True)
        pass_gate(args.gate, "after", rank)
        private, gradients = private_mb(), ways.gradients
    said = {
        "digest": digest_of(task.model),
        "model_bytes": 4 * parameters,
        "begin_ns": begins,
        "end_ns": ends,
        "step_cpu_ms": statistics.median(busy),
        **{name: statistics.median(times) for name, times in zip(SPLIT, zip(*split))},
        "private_mb": private,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "device_mb": torch.cuda.max_memory_allocated() / 2**20 if args.device == "cuda" else 0.0,
        "gradients": gradients,
        "curve": curve,
    }
    if args.out and rank == 0:
        Path(args.out).write_text(json.dumps(said))
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
