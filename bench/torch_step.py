#!/usr/bin/env python3
"""Cost of a step compared with plain torch, and memory of a trainer: all ranks, worker and server on one machine.

    bench/torch_step.py [--turns 3] [--steps 20] [--ranks 1] [--device cuda] [--models gpt,resnet] [--bin FOLDER]

The ways run in turns, each time in new processes; one thread of a rank computes. One rank: plain torch and Tributary;
several: DistributedDataParallel and, without a GPU, FSDP2, both over gloo, and Tributary. With --device cuda Tributary
runs twice: its worker lends memory of the GPU ("tributary"), or sees none ("tributary-host"). Prints one JSON object a
line: as soon as a way's turn is over its figures, with "model", "way" and "turn"; at last the comparison. It has for
each model and way the median over turns of rank 0's median step, of the processor time that it spends in it, and of its
memory with AdamW (`peak_rss_mb` counts what is shared with the worker, gradients and parameters; `private_mb` does not;
`device_mb` is torch's on the GPU), of the loss that gpt ends with on text held out; and how long a step is beside the
first way's.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
RANK = Path(__file__).with_name("torch_rank.py")
BATCH = {"cpu": {"gpt": 4, "resnet": 8}, "cuda": {"gpt": 32, "resnet": 128}}
WARMUP = 4
OURS, OURS_HOST = "tributary", "tributary-host"
KEPT = ("step_cpu_ms", "private_mb", "peak_rss_mb", "device_mb", "model_bytes")


def ways(args: argparse.Namespace) -> list[str]:
    paths = [OURS, OURS_HOST] if args.device == "cuda" else [OURS]
    if args.ranks == 1:
        return ["alone", *paths]
    return ["ddp", *paths] if args.device == "cuda" else ["ddp", "fsdp2", *paths]


def only_rank_sees_gpus(command: list[str], environment: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """Returns command and environment of a run whose daemons see no GPU, so that its worker lends no memory of one."""
    seen = environment.get("CUDA_VISIBLE_DEVICES")
    again = ["-u", "CUDA_VISIBLE_DEVICES"] if seen is None else [f"CUDA_VISIBLE_DEVICES={seen}"]
    return ["/usr/bin/env", *again, *command], {**environment, "CUDA_VISIBLE_DEVICES": ""}


def daemon_options(args: argparse.Namespace) -> list[str]:
    """Options of `tributary run`: logs that are kept are at debug."""
    return ["--log-level", "debug"] if args.base_dir else []


def use_library_of(programs: Path) -> None:
    """The library next to the folder of the programs, unless the environment names one."""
    library = programs.parent / "lib" / "libtributary.so.1"
    if library.exists():
        os.environ.setdefault("TRIBUTARY_LIBRARY", str(library))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(commands: list[list[str]], environments: list[dict[str, str]], folder: str) -> None:
    """All at once, to their end. Their output goes to `folder`, where it is found even if they never end."""
    outputs = [Path(folder, f"output-{number}.out") for number in range(len(commands))]
    started = []
    for command, environment, output in zip(commands, environments, outputs):
        with open(output, "wb") as file:
            started.append(subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT))
    for process in started:
        process.wait()
    for process, output in zip(started, outputs):
        if process.returncode:
            said = output.read_text(encoding="utf-8", errors="replace")
            sys.exit(f"{process.args!r} ended with {process.returncode}:\n{said}")


def turn(model: str, how: str, args: argparse.Namespace) -> dict[str, Any]:
    """One measurement in processes of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        # Daemons' logs outlive the turn where they are wanted.
        folder = str(args.base_dir / f"{model}-{how}-{len(os.listdir(args.base_dir))}") if args.base_dir else scratch
        os.makedirs(folder, exist_ok=True)
        out = f"{folder}/figures.json"
        ours = how in (OURS, OURS_HOST)
        command = [sys.executable, str(RANK), "--how", OURS if ours else how, "--model", model, "--out", out]
        command += ["--device", args.device, "--batch", str(BATCH[args.device][model])]
        command += ["--steps", str(args.steps), "--warmup", str(WARMUP)]
        if model == "gpt":
            command += ["--evaluate-every", str(args.steps + WARMUP)]
        base = {**os.environ, "OMP_NUM_THREADS": "1"}
        if how == OURS_HOST:
            command, base = only_rank_sees_gpus(command, base)
        if ours:
            launcher = [str(args.bin / "tributary"), "run", "--base-dir", f"{folder}/run"]
            launcher += ["--ranks-per-node", str(args.ranks), *daemon_options(args)]
            run([[*launcher, "--", *command]], [base], folder)
        else:
            place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(args.ranks)}
            ranks = [{**base, **place, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(args.ranks)]
            run([command] * args.ranks, ranks, folder)
        figures = dict(json.loads(Path(out).read_text()))
        spans = zip(figures["begin_ns"], figures["end_ns"])
        step_ms = 1e-6 * statistics.median(end - begin for begin, end in spans)
        kept = {"step_ms": step_ms, **{key: figures[key] for key in KEPT}, "gradients": figures["gradients"]}
        if figures["curve"]:
            kept["loss"] = figures["curve"][-1]["loss"]
        return kept


def compare(model: str, args: argparse.Namespace) -> dict[str, Any]:
    """All ways in turns."""
    taken: dict[str, list[dict[str, Any]]] = {how: [] for how in ways(args)}
    for number in range(args.turns):
        for how, results in taken.items():
            results.append(turn(model, how, args))
            print(json.dumps({"model": model, "way": how, "turn": number + 1, **results[-1]}), flush=True)
    parameters = next(iter(taken.values()))[0]["model_bytes"] // 4
    said: dict[str, Any] = {"parameters": parameters, "adam_states_mb": round(2 * 4 * parameters / 2**20, 1)}
    for how, results in taken.items():
        numbers = [key for key in results[0] if key not in ("model_bytes", "gradients")]
        said[how] = {
            key: round(statistics.median(r[key] for r in results), 4 if key == "loss" else 1) for key in numbers
        }
        said[how]["gradients"] = results[0]["gradients"]
        said[how]["steps_ms"] = [round(r["step_ms"], 1) for r in results]
    first, *others = ways(args)
    said["step_ratio"] = {how: round(said[how]["step_ms"] / said[first]["step_ms"], 3) for how in others}
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--device", choices=tuple(BATCH), default="cpu")
    parser.add_argument("--bin", type=Path, default=REPOSITORY / "build/release/bin", help="folder of the programs")
    parser.add_argument("--models", default="gpt,resnet")
    parser.add_argument(
        "--base-dir", type=Path, help="an existing folder that keeps output and daemons' logs (default: keep nothing)"
    )
    args = parser.parse_args()
    use_library_of(args.bin)
    results = {name: compare(name, args) for name in args.models.split(",")}
    print(json.dumps(results))


if __name__ == "__main__":
    main()
