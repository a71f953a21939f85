"""The rungs in their order: whether it is right comes before how fast it is, and the parts come before the whole.

A rung takes a minute or two where nothing is wrong. A step's limit is there for one that hangs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable

from gpu_ladder.machine import mps, mps_runs, said_by
from gpu_ladder.steps import LOGS, Figures, Outcome, Rung, Step, last_object

TEST_LIMIT_S, TORCH_LIMIT_S, SANITIZER_LIMIT_S = 150.0, 240.0, 120.0
IMPORT_S = 90.0  # for torch, from a disk that has not been read yet
PIPELINE = "gpu-pipeline"
FIRST_PIPELINE = f"bench {PIPELINE}, fp32, shm"  # where it fails others would, too, each after its time
ENCODINGS = ("fp32", "bf16", "int8", "onebit")
CHUNKS_MIB = (1, 4, 16)
RANKS = (1, 4)
SHORT = ["--seconds", "1", "--slices", "2", "--no-ceiling"]
LOSS_APART = 0.01  # relative
CALM, LOST = "losses, calm", ("server", "worker", "trainer")  # by bench/torch_losses.py's --kill
TORCH_PATHS = {"tributary": "device", "tributary-host": "host"}  # of gradients, by bench/torch_step.py's ways

OWN_RUNGS = ("test_gpu_kernels", "test_gpu_node")
EMULATED = ("test_gpu_costs",)  # of a build tree, about a GPU that is emulated: no word about this machine's
NOT_FOR_THIS_GPU = "Device not supported"  # compute-sanitizer's words, instead of a finding

# Cases that compute-sanitizer, which makes kernels 10 to 50 times slower, gets through in its time: doctest's filter.
SMALL_CASES = "*edges of the scale*,*equal values*,*over its first input*,*last group only*"
# Parts of the node's test, by their cases: doctest's filters.
NODE_CASES = {
    "sums and encodings": "sums? encodings*,one? two and four*,nccl = always*",
    "streams and memory": "events order*,memory that there is not*",
    "another process": "another process*",
    "all-reduce": "one rank goes*,a job on a device*,a communicator*",
}


def test_figures(text: str) -> dict[str, Any] | None:
    """Counts that doctest prints at the end of a test program, and why cases of it were skipped."""
    end = re.search(r"^\[doctest\] test cases:(.*)$", text, re.MULTILINE)
    if not end:
        return None
    numbers = [int(number) for number in re.findall(r"\d+", end.group(1))]
    figures: dict[str, Any] = dict(zip(("cases", "passed", "failed", "skipped"), numbers))
    without = re.findall(r"MESSAGE: skipped: (.*)", text)
    if without:  # a case that goes without the library it is about has passed to doctest
        figures["passed"] = max(figures.get("passed", 0) - len(without), 0)
        figures["skipped"] = figures.get("skipped", 0) + len(without)
        figures["skipped_because"] = sorted(set(without))
    return figures


def judge_test(outcome: Outcome) -> Outcome:
    """A test program none of whose cases looked at anything has not passed."""
    figures = test_figures(outcome.text) or {}
    if outcome.status == "passed" and figures.get("passed") == 0:
        because = figures.get("skipped_because")
        if because:
            return Outcome("skipped", "; ".join(because), outcome.text)
        return Outcome("failed", "no case of it was run", outcome.text)
    return outcome


def judge_sanitizer(outcome: Outcome) -> Outcome:
    """A sanitizer that does not know the GPU has looked at nothing."""
    for line in (outcome.text + "\n" + outcome.reason).splitlines():
        if NOT_FOR_THIS_GPU in line:
            return Outcome("skipped", "compute-sanitizer: " + line.strip("= "), outcome.text)
    return judge_test(outcome)


def torch_figures(text: str) -> dict[str, Any] | None:
    """The comparison with plain torch; of a program that did not get to its end, the ways that did: {model: {way}}."""
    last: dict[str, Any] | None = last_object(text)
    if last is None or "way" not in last:
        return last
    done: dict[str, Any] = {}
    for line in text.splitlines():
        said: Any = None
        with suppress(ValueError):
            said = json.loads(line)
        if isinstance(said, dict) and "way" in said:
            done.setdefault(said["model"], {})[said["way"]] = said
    return done


def judge_torch(outcome: Outcome) -> Outcome:
    """Gradients must have gone either way, and the GPT must end in plain torch's loss."""
    figures = last_object(outcome.text) if outcome.status == "passed" else None
    for run in (figures or {}).values():
        baseline = run["alone"] if "alone" in run else run["ddp"]  # of one rank; of several
        alone = baseline.get("loss")  # of what it learns; none of noise
        for way, path in TORCH_PATHS.items():
            ours = run[way]
            if ours["gradients"] != path:
                reason = f"{way}: gradients went over memory of the {ours['gradients']}, not of the {path}"
                return Outcome("failed", reason, outcome.text)
            if alone is not None and not abs(ours["loss"] - alone) <= LOSS_APART * alone:  # also if one is no number
                reason = f"{way}: loss {ours['loss']:g}, and {alone:g} without Tributary"
                return Outcome("failed", reason, outcome.text)
    return outcome


def either(first: Callable[[float], str], second: Callable[[float], str]) -> Callable[[float], str]:
    return lambda left: first(left) or second(left)


def under_mps(step: Step) -> Step:
    """The step with a daemon of MPS that is there for this step alone."""

    def runs(_: float) -> str:
        return "MPS runs on this machine: the steps before had it, too" if mps_runs() else ""

    return replace(step, around=mps, skipped=either(step.skipped, runs))


class Rungs:
    """The ladder for the programs in `bin_dir`, on a machine with these GPUs."""

    def __init__(self, bin_dir: Path, gpus: Sequence[dict[str, Any]]) -> None:
        self.bin_dir = bin_dir
        # 2^28 values take 15 GiB.
        self.small = any(isinstance(gpu.get("memory_mib"), int) and gpu["memory_mib"] < 20_000 for gpu in gpus)
        self.known: dict[tuple[str, ...], str] = {}  # what programs list with --help
        self.torch_there: bool | None = None  # None: not asked yet
        self.calm_digest = ""  # of the parameters after training that lost nothing

    def all(self) -> list[Rung]:
        return [
            Rung("doctor", self.doctor),
            Rung("kernels", lambda: self.tests("test_gpu_kernels", {})),
            Rung("node", lambda: self.tests("test_gpu_node", NODE_CASES)),
            Rung("tests", self.other_tests),
            Rung("pipeline", self.first_pipelines),
            Rung("costs", lambda: self.bench("gpu-costs", {"": []})),
            Rung("speed", self.kernel_speed),
            Rung("torch", self.torch),
            Rung("losses", self.losses),
            Rung("sanitizer", self.sanitizer),
            Rung("pipelines", self.other_pipelines),
        ]

    # ---- Programs and what they know ----

    @property
    def tributary(self) -> str:
        return str(self.bin_dir / "tributary")

    def knows(self, words: Sequence[str], word: str) -> bool:
        listed = self.known.get(tuple(words), "")
        if not listed:
            listed = self.known[tuple(words)] = said_by([self.tributary, *words, "--help"])
        return re.search(rf"^ +{re.escape(word)}( |$)", listed, re.MULTILINE) is not None

    def bench(self, benchmark: str, variants: dict[str, list[str]], needs: str = "") -> Iterator[Step]:
        def missing(_: float) -> str:
            known = self.knows(["bench"], benchmark)
            return "" if known else f"this build's 'tributary bench' has no {benchmark}"

        for variant, options in variants.items():
            name = f"bench {benchmark}" + (f", {variant}" if variant else "")
            command = [self.tributary, "bench", benchmark, *options, "--json"]
            if benchmark == PIPELINE:
                command += ["--base-dir", LOGS]
            yield Step(name, command, needs=needs, skipped=missing)

    # ---- Rungs ----

    def doctor(self) -> Iterator[Step]:
        def missing(_: float) -> str:
            return "" if self.knows([], "doctor") else "this build's 'tributary' has no doctor"

        yield Step("doctor", [self.tributary, "doctor", "--json"], skipped=missing)

    def tests(self, program: str, parts: dict[str, str]) -> Iterator[Step]:
        test = self.bin_dir / program

        def missing(_: float) -> str:
            return "" if os.access(test, os.X_OK) else f"{test} is not there: this build has no CUDA parts"

        for part, cases in parts.items() or [("", "")]:
            yield Step(
                f"{program}, {part}" if part else program,
                [str(test), *([f"--test-case={cases}"] if cases else [])],
                test_figures,
                judge_test,
                TEST_LIMIT_S,
                skipped=missing,
            )

    def other_tests(self) -> Iterator[Step]:
        for test in sorted(self.bin_dir.glob("test_gpu_*")):
            if test.name not in OWN_RUNGS + EMULATED:
                yield from self.tests(test.name, {})

    def first_pipelines(self) -> Iterator[Step]:
        options = {transport: ["--transport", transport, "--chunk-bytes", "4mb"] for transport in ("shm", "tcp")}
        yield from self.bench(PIPELINE, {f"fp32, {transport}": more for transport, more in options.items()})

    def kernel_speed(self) -> Iterator[Step]:
        powers = (18, 26 if self.small else 28)
        yield from self.bench("gpu-kernels", {f"2^{power} values": ["--elements", str(2**power)] for power in powers})

    def torch_program(self, name: str, program: str, options: Sequence[str], figures: Figures = last_object) -> Step:
        path = Path(__file__).resolve().parents[1] / program

        def missing(left: float) -> str:
            if not path.exists():
                return f"{path} is not there"
            if self.torch_there is None:
                asked = "import torch; print(torch.cuda.is_available())"
                self.torch_there = said_by([sys.executable, "-c", asked], min(IMPORT_S, left)).strip() == "True"
            return "" if self.torch_there else f"{sys.executable} has no torch with CUDA"

        command = [sys.executable, str(path), *options, "--bin", str(self.bin_dir), "--base-dir", LOGS]
        return Step(name, command, figures, skipped=missing)

    def torch(self) -> Iterator[Step]:
        """One rank; and two, which share a machine's only GPU, with and without MPS."""

        def step(name: str, model: str, ranks: int = 1, needs: str = "") -> Step:
            options = ["--device", "cuda", "--turns", "1", "--models", model, "--ranks", str(ranks)]
            made = self.torch_program(f"torch, {name}", "torch_step.py", options, torch_figures)
            return replace(made, judge=judge_torch, limit_s=TORCH_LIMIT_S, needs=needs)

        yield step("gpt", "gpt")
        yield step("resnet", "resnet")
        yield step("gpt, ranks 2", "gpt", 2, "torch, gpt")
        yield under_mps(step("gpt, MPS, ranks 2", "gpt", 2, "torch, gpt"))

    def losses(self) -> Iterator[Step]:
        """Training that loses a process ends with the calm training's parameters."""

        def incomparable(_: float) -> str:
            return "" if self.calm_digest else f"'{CALM}' has no digest to compare with"

        calm = replace(self.torch_program(CALM, "torch_losses.py", []), judge=self.judge_losses)
        yield calm
        for lost in LOST:
            command = [*calm.command, "--kill", lost]
            yield replace(calm, name=f"losses, {lost}", command=command, skipped=either(calm.skipped, incomparable))

    def judge_losses(self, outcome: Outcome) -> Outcome:
        """Every run must have the calm run's digest, and gradients on the device."""
        figures = last_object(outcome.text) if outcome.status == "passed" else None
        if figures is None:
            return outcome
        killed, digest = figures["killed"], figures["digest"]
        if killed is None:
            self.calm_digest = digest
        if digest != self.calm_digest:
            reason = f"{killed} killed: digest {digest}, and {self.calm_digest} of the calm run"
            return Outcome("failed", reason, outcome.text)
        if figures["gradients"] != TORCH_PATHS["tributary"]:
            reason = f"{killed or 'nothing'} killed: gradients went over memory of the {figures['gradients']}"
            return Outcome("failed", f"{reason}, not of the {TORCH_PATHS['tributary']}", outcome.text)
        return outcome

    def sanitizer(self) -> Iterator[Step]:
        sanitizer = shutil.which("compute-sanitizer", path=os.environ.get("PATH", "") + ":/usr/local/cuda/bin")
        missing = "" if sanitizer else "compute-sanitizer is neither on PATH nor in /usr/local/cuda/bin"
        for tool in ("memcheck", "racecheck"):
            for step in self.tests("test_gpu_kernels", {"small cases": SMALL_CASES}):
                # Leaks are not asked for: a test that ends frees its memory with its context. Calls that fail are not,
                # either: some tests make one fail, and look at what is said.
                options = ["--tool", tool, "--error-exitcode", "86", "--target-processes", "all"]
                if tool == "memcheck":
                    options += ["--report-api-errors", "no"]
                yield replace(
                    step,
                    name=f"{tool} {step.name}",
                    command=[sanitizer or tool, *options, *step.command],
                    judge=judge_sanitizer,
                    limit_s=SANITIZER_LIMIT_S,
                    skipped=either(step.skipped, lambda _: missing),
                )

    def other_pipelines(self) -> Iterator[Step]:
        """Encodings, sizes and ranks; and the first pipeline with several ranks under MPS."""
        shapes: list[tuple[str, int, int]] = [
            (encoding, chunk, ranks) for encoding in ENCODINGS for chunk in CHUNKS_MIB for ranks in RANKS
        ]
        variants = {
            f"{encoding}, {chunk} MiB, ranks {ranks}": [
                *("--push", encoding, "--chunk-bytes", f"{chunk}mb", "--ranks-per-node", str(ranks)),
                *("--transport", "shm", *SHORT),
            ]
            for encoding, chunk, ranks in shapes
        }
        shared = {
            f"MPS, ranks {ranks}": ["--transport", "shm", "--ranks-per-node", str(ranks), *SHORT] for ranks in (1, 2)
        }
        for step in self.bench(PIPELINE, shared, FIRST_PIPELINE):
            yield under_mps(step)
        yield from self.bench(PIPELINE, variants, FIRST_PIPELINE)
