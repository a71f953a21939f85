"""`tributary bench torch`, on two hosts of a lab: whoever exchanges, the same batches give the same model."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from cluster import BIN, environment, not_built

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
        ended = self.bench("--variants", ",".join(names), *arguments, "--report", str(self.folder / "report"))
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
        for name in ("ddp", "servers"):  # with two hosts each carries one model each way, whoever exchanges
            for host in found[name]["wire_bytes"]:
                self.assertLess(abs(host["sent"] / lab["model_bytes"] - 1), 0.15, name)
        self.assertIn("Validation loss", (self.folder / "report" / "report.html").read_text())

    def test_what_is_wrong_is_said(self) -> None:
        ended = self.bench("--variants", "ddp,horovod")
        self.assertNotEqual(ended.returncode, 0)
        self.assertIn("horovod", ended.stderr)
        ended = self.bench("--variants", "ddp", python="no-such-python")
        self.assertEqual(ended.returncode, 1, ended.stderr)
        self.assertIn("no-such-python", ended.stderr)


if __name__ == "__main__":
    unittest.main()
