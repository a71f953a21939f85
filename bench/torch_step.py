#!/usr/bin/env python3
"""What a step costs beside plain torch, and what memory a trainer needs: one rank, worker and server on one machine.

    bench/torch_step.py [--turns 3] [--steps 20] [--bin build/release/bin] [--models gpt,resnet]

Plain torch and Tributary run in turns, each time in new processes; one thread computes. Prints one JSON object: for
each model the median over turns of the median step, of the processor time that the trainer spends in it, and of the
trainer's memory with AdamW. `peak_rss` counts what is shared with the worker (gradients and parameters), `private` does
not.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
WARM_UP = 4


def task_of(name: str) -> tuple[Any, Any, Any]:
    """A model, a batch of inputs, and one of targets."""
    import torch

    sys.path.insert(0, str(REPOSITORY / "examples"))
    torch.manual_seed(1)
    if name == "gpt":
        from byte_gpt import ByteGPT

        tokens = torch.randint(256, (4, 129))
        return ByteGPT(layers=6, width=384, heads=6, context=128), tokens[:, :-1], tokens[:, 1:].flatten()
    from fashion_resnet import resnet18

    return resnet18(), torch.randn(8, 1, 28, 28), torch.randint(10, (8,))


def private_mb() -> float:
    """Memory of this process that it shares with nobody, now."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) / 1024


def measure(name: str, how: str, steps: int, out: str) -> None:
    """As a trainer: times each step, and writes what came of it."""
    import torch
    from torch.nn import functional as F

    torch.set_num_threads(1)
    model, x, y = task_of(name)
    opt: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    if how == "tributary":
        import tributary.torch as trib

        opt = trib.DistributedOptimizer(model, opt)
    times, busy = [], []
    for _ in range(WARM_UP + steps):
        began, used = time.perf_counter(), time.process_time()
        outputs = model(x)
        F.cross_entropy(outputs.flatten(0, -2), y).backward()
        opt.step()
        opt.zero_grad()
        times.append(1000 * (time.perf_counter() - began))
        busy.append(1000 * (time.process_time() - used))
    figures = {
        "step_ms": statistics.median(times[WARM_UP:]),
        "step_cpu_ms": statistics.median(busy[WARM_UP:]),
        "private_mb": private_mb(),
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "parameters": sum(p.numel() for p in model.parameters()),
    }
    Path(out).write_text(json.dumps(figures))


def turn(name: str, how: str, steps: int, programs: Path) -> dict[str, Any]:
    """One measurement in processes of its own."""
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/figures.json"
        command = [sys.executable, __file__, "--measure", name, "--how", how, "--steps", str(steps), "--out", out]
        if how == "tributary":
            command = [str(programs / "tributary"), "run", "--base-dir", f"{folder}/run", "--", *command]
        path = os.pathsep.join(filter(None, [str(REPOSITORY / "python"), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        ended = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if ended.returncode:
            sys.exit(f"{' '.join(command)} ended with {ended.returncode}:\n{ended.stdout}")
        return dict(json.loads(Path(out).read_text()))


def compare(name: str, turns: int, steps: int, programs: Path) -> dict[str, Any]:
    """Both in turns."""
    taken: dict[str, list[dict[str, Any]]] = {"torch": [], "tributary": []}
    for _ in range(turns):
        for how, results in taken.items():
            results.append(turn(name, how, steps, programs))
    said: dict[str, Any] = {"parameters": taken["torch"][0]["parameters"]}
    for how, results in taken.items():
        said[how] = {key: round(statistics.median(r[key] for r in results), 1) for key in results[0]}
        del said[how]["parameters"]
        said[how]["steps_ms"] = [round(r["step_ms"], 1) for r in results]
    said["step_ratio"] = round(said["tributary"]["step_ms"] / said["torch"]["step_ms"], 3)
    said["adam_states_mb"] = round(2 * 4 * said["parameters"] / 2**20, 1)
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--bin", type=Path, default=REPOSITORY / "build/release/bin", help="folder of the programs")
    parser.add_argument("--models", default="gpt,resnet")
    for hidden in ("--measure", "--how", "--out"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measure(args.measure, args.how, args.steps, args.out)
        return
    library = args.bin.parent / "lib" / "libtributary.so.1"
    if library.exists():
        os.environ.setdefault("TRIBUTARY_LIBRARY", str(library))
    results = {name: compare(name, args.turns, args.steps, args.bin) for name in args.models.split(",")}
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
