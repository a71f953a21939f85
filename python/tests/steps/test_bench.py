"""Comparison with torch: whatever exchanges the gradients, the same batches give the same model."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

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
        *turns, whole = map(json.loads, ended.stdout.splitlines())
        self.assertEqual([said["way"] for said in turns], ["alone", "tributary"])
        gpt = whole["gpt"]
        self.assertLess(abs(gpt["tributary"]["loss"] / gpt["alone"]["loss"] - 1), 1e-3)
        self.assertEqual(gpt["tributary"]["gradients"], "host")
        self.assertEqual(list(gpt["step_ratio"]), ["tributary"])


class TorchStepOutputTest(unittest.TestCase):
    """The output of `bench/torch_step.py` with ranks that compute nothing."""

    RANK = """
import json, os, sys
words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
print("a rank's own words", flush=True)
if words["--how"] == "tributary":
    sys.exit("it breaks")
said = dict.fromkeys(("step_cpu_ms", "private_mb", "peak_rss_mb", "device_mb"), 1.0)
said.update(begin_ns=[0], end_ns=[2000000], model_bytes=4, gradients="host", curve=[])
open(words["--out"], "w").write(json.dumps(said))
"""

    def test_a_way_that_breaks_loses_nothing_of_those_before(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "bench").mkdir()
            shutil.copy(REPOSITORY / "bench" / "torch_step.py", folder / "bench")
            (folder / "bench" / "torch_rank.py").write_text(self.RANK)
            (folder / "tributary").write_text('#!/bin/sh\nuntil test "$1" = --; do shift; done; shift; exec "$@"\n')
            (folder / "tributary").chmod(0o755)
            (folder / "kept").mkdir()
            command = [sys.executable, str(folder / "bench" / "torch_step.py"), "--bin", str(folder), "--turns", "1"]
            command += ["--models", "resnet", "--base-dir", str(folder / "kept")]
            ended = subprocess.run(command, capture_output=True, text=True)
            self.assertEqual(ended.returncode, 1, ended.stdout + ended.stderr)
            self.assertIn("it breaks", ended.stderr)
            (line,) = ended.stdout.splitlines()
            said = json.loads(line)
            self.assertEqual((said["model"], said["way"], said["turn"], said["step_ms"]), ("resnet", "alone", 1, 2.0))
            outputs = sorted((folder / "kept").glob("*/output-0.out"))
            self.assertEqual([path.parent.name for path in outputs], ["resnet-alone-0", "resnet-tributary-1"])
            self.assertIn("it breaks", outputs[1].read_text())


if __name__ == "__main__":
    unittest.main()
