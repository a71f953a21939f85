"""Comparison with torch: whatever exchanges the gradients, the same batches give the same model."""

from __future__ import annotations

import importlib
import json
import math
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

from cluster import BIN, REPOSITORY, environment, not_built

LAB = """
[lab]
name = "torch-{pid}"
[network]
rate_mbit = 1000
[[hosts]]
name = "h"
count = 2
runs = "both"
"""
STEPS, WARMUP = 2, 1


@unittest.skipIf(bool(not_built()), not_built())
class BenchTorchTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.lab = self.folder / "lab.toml"
        self.lab.write_text(LAB.format(pid=self.folder.name[-8:].replace("_", "-").strip("-")))

    def bench(self, *arguments: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
        command = [str(BIN / "tributary"), "bench", "torch", str(self.lab), "--python", python, "--no-verify"]
        command += ["--base-dir", str(self.folder / "run"), "--batch", "1", "--repetitions", "1", "--json", *arguments]
        return subprocess.run(command, env=environment(), capture_output=True, text=True)

    def test_ways_to_train_are_compared(self) -> None:
        names = ["ddp", "servers", "int8", "diloco"]
        every = STEPS + WARMUP
        options = {"steps": STEPS, "warmup": WARMUP, "evaluate-every": every, "sync-every": every}
        arguments = [word for key, value in options.items() for word in (f"--{key}", str(value))]
        ended = self.bench("--variants", ",".join(names), *arguments)
        if "network namespaces" in ended.stderr:
            self.skipTest(ended.stderr)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        (lab,) = json.loads(ended.stdout)["labs"]
        self.assertEqual([v["name"] for v in lab["variants"]], names)
        found = {v["name"]: v for v in lab["variants"]}
        self.assertEqual(found["ddp"]["over_ddp"], 1)
        self.assertEqual(found["servers"]["steps"], STEPS)
        self.assertEqual(found["diloco"]["steps"], 3 * STEPS)
        loss = {name: v["validation_loss"] for name, v in found.items()}
        self.assertLess(abs(loss["servers"] / loss["ddp"] - 1), 1e-5)
        self.assertLess(abs(loss["int8"] / loss["ddp"] - 1), 1e-2)
        for name in ("ddp", "servers"):  # with two hosts each carries one model each way, whatever the exchange
            for host in found[name]["wire_bytes"]:
                self.assertLess(abs(host["sent"] / lab["model_bytes"] - 1), 0.15, name)

    def test_what_is_wrong_is_said(self) -> None:
        ended = self.bench("--variants", "ddp,horovod")
        self.assertNotEqual(ended.returncode, 0)
        self.assertIn("horovod", ended.stderr)
        ended = self.bench("--variants", "ddp", python="no-such-python")
        self.assertEqual(ended.returncode, 1, ended.stderr)
        self.assertIn("no-such-python", ended.stderr)


@unittest.skipIf(bool(not_built()), not_built())
class TorchStepTest(unittest.TestCase):
    def test_a_step_is_compared_with_one_of_plain_torch(self) -> None:
        command = [sys.executable, str(REPOSITORY / "bench" / "torch_step.py"), "--bin", str(BIN), "--turns", "1"]
        command += ["--steps", "2", "--models", "gpt"]
        ended = subprocess.run(command, env=environment(), capture_output=True, text=True)
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        gpt = json.loads(ended.stdout)["gpt"]
        self.assertLess(abs(gpt["tributary"]["loss"] / gpt["alone"]["loss"] - 1), 1e-3)
        self.assertEqual(gpt["tributary"]["gradients"], "host")
        self.assertEqual(list(gpt["step_ratio"]), ["tributary"])


class GpuCheckTest(unittest.TestCase):
    """The judgement of `bench/gpu_check` on the figures of a step on a GPU."""

    def setUp(self) -> None:
        sys.path.insert(0, str(REPOSITORY / "bench"))
        self.addCleanup(sys.path.remove, str(REPOSITORY / "bench"))
        self.rungs: Any = importlib.import_module("gpu_ladder.rungs")
        self.words: Any = importlib.import_module("gpu_ladder.words")
        self.steps: Any = importlib.import_module("gpu_ladder.steps")

    def judged(self, **changed: Any) -> str:
        """Why figures are no pass, with some of the run over the host's memory changed."""
        ways = {way: {"step_ms": 1.0, "loss": 2.0, "gradients": path} for way, path in self.rungs.TORCH_PATHS.items()}
        ways["tributary-host"].update(changed)
        figures = {"gpt": {"alone": {"loss": 2.0}, **ways, "step_ratio": dict.fromkeys(ways, 1.01)}}
        self.assertEqual(len(self.words.torch_in_words({"torch, gpt": figures})), 2)
        outcome = self.rungs.judge_torch(self.steps.Outcome("passed", "", json.dumps(figures)))
        self.assertEqual(outcome.status == "passed", outcome.reason == "")
        return str(outcome.reason)

    def test_both_paths_must_be_taken_and_end_with_torchs_loss(self) -> None:
        self.assertEqual(self.judged(), "")
        self.assertEqual(self.judged(loss=2.019), "")
        self.assertIn("loss 2.021, and 2 without", self.judged(loss=2.021))
        self.assertIn("loss nan", self.judged(loss=math.nan))
        self.assertIn("memory of the device, not of the host", self.judged(gradients="device"))

    def test_parts_of_a_test_have_all_of_its_cases(self) -> None:
        def cases(program: str, chosen: str) -> list[str]:
            command = [str(BIN / program), "--list-test-cases", f"--test-case={chosen}"]
            listed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
            return [line for line in listed.splitlines() if line and not line.startswith(("[doctest]", "====="))]

        if not (BIN / "test_gpu_node").exists():
            self.skipTest("this build has no CUDA parts")
        self.assertEqual(len(cases("test_gpu_kernels", self.rungs.SMALL_CASES)), 4)
        parts = [cases("test_gpu_node", chosen) for chosen in self.rungs.NODE_CASES.values()]
        self.assertTrue(all(parts))
        self.assertEqual({case for part in parts for case in part}, {*cases("test_gpu_node", "*")})


if __name__ == "__main__":
    unittest.main()
