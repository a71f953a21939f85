"""bench/gpu_check: its judgement on figures, its page, its end by a signal, and losses. Nothing needs a GPU.

Losses need a build; they are tried on the processors.
"""

from __future__ import annotations

import gzip
import importlib
import json
import math
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from cluster import BIN, REPOSITORY, environment, not_built

CHECK = REPOSITORY / "bench" / "gpu_check"
DOCTEST_END = "echo '[doctest] test cases:  8 |  8 passed | 0 failed | 0 skipped'"
PATIENCE = 30.0  # seconds


class Parts(unittest.TestCase):
    """The ladder's modules."""

    def setUp(self) -> None:
        sys.path.insert(0, str(REPOSITORY / "bench"))
        self.addCleanup(sys.path.remove, str(REPOSITORY / "bench"))
        self.rungs: Any = importlib.import_module("gpu_ladder.rungs")
        self.words: Any = importlib.import_module("gpu_ladder.words")
        self.steps: Any = importlib.import_module("gpu_ladder.steps")


class Judgement(Parts):
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

    def test_two_ranks_are_compared_with_torchs_own(self) -> None:
        paths = self.rungs.TORCH_PATHS.items()
        ways = {way: {"step_ms": 1.0, "loss": 2.5, "gradients": path} for way, path in paths}
        figures = {"gpt": {"ddp": {"loss": 2.0}, **ways, "step_ratio": dict.fromkeys(ways, 1.01)}}
        outcome = self.rungs.judge_torch(self.steps.Outcome("passed", "", json.dumps(figures)))
        self.assertIn("loss 2.5, and 2 without", outcome.reason)

    def test_a_loss_that_changes_bits_or_leaves_the_device_is_named(self) -> None:
        rungs = self.rungs.Rungs(Path("nowhere"), [])

        def judged(killed: str | None, digest: str, gradients: str = "device") -> str:
            said = {"killed": killed, "digest": digest, "gradients": gradients}
            return str(rungs.judge_losses(self.steps.Outcome("passed", "", json.dumps(said))).reason)

        self.assertEqual(judged(None, "a1"), "")
        self.assertEqual(judged("server 0", "a1"), "")
        self.assertEqual(judged("worker 1", "b2"), "worker 1 killed: digest b2, and a1 of the calm run")
        self.assertIn(
            "trainer 1 killed: gradients went over memory of the device and host, not of the device",
            judged("trainer 1", "a1", "device and host"),
        )
        failed = self.steps.Outcome("failed", "exit status 1", "")
        self.assertIs(rungs.judge_losses(failed), failed)

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

    def test_a_run_that_did_not_end_has_the_ways_that_did(self) -> None:
        ways = [{"model": "gpt", "way": way, "turn": 1, "step_ms": 5.0} for way in ("alone", "tributary")]
        text = "".join(json.dumps(said) + "\n" for said in ways)
        figures = self.rungs.torch_figures(text)
        self.assertEqual(list(figures["gpt"]), ["alone", "tributary"])
        self.assertIn("torch, gpt: alone: a step 5.00 ms", self.words.torch_in_words({"torch, gpt": figures}))
        whole = {"gpt": {"step_ratio": {"tributary": 1.0}}}
        self.assertEqual(self.rungs.torch_figures(text + json.dumps(whole) + "\n"), whole)

    def test_a_sanitizer_that_does_not_know_the_gpu_is_skipped(self) -> None:
        said = '========= Error: Device not supported. Please refer to the "Supported Devices" section'
        for status in ("failed", "passed"):
            outcome = self.rungs.judge_sanitizer(self.steps.Outcome(status, "", said))
            self.assertEqual(outcome.status, "skipped")
            self.assertTrue(outcome.reason.startswith("compute-sanitizer: Error: Device not supported"), outcome.reason)
        finding = self.steps.Outcome("failed", "exit status 86", "========= Invalid __global__ read")
        self.assertEqual(self.rungs.judge_sanitizer(finding).status, "failed")

    def test_tests_on_an_emulated_gpu_are_left_out(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for name in ("test_gpu_costs", "test_gpu_kernels", "test_gpu_third"):
                (Path(folder) / name).touch(mode=0o755)
            steps = self.rungs.Rungs(Path(folder), []).other_tests()
            self.assertEqual([step.name for step in steps], ["test_gpu_third"])


class Page(Parts):
    def pipeline(self, **more: Any) -> str:
        split = {"round_us": 7, "device_to_host_us": 2, "host_to_device_us": 3}
        figures = {"gb_per_s_each_way": 9.5, "time_split": split, **more}
        (line,) = self.words.pipelines_in_words({"bench gpu-pipeline, fp32, shm": figures})
        return str(line)

    def test_only_ratios_that_were_measured(self) -> None:
        self.assertIn("9.50 GB/s each way; of a chunk", self.pipeline(ratio_to_ceiling=0.0))
        self.assertIn("each way, 0.50 of the echo; of a chunk", self.pipeline(ratio_to_ceiling=0.5))
        link = {"device_to_host_gb_per_s": 19.0, "host_to_device_gb_per_s": 25.0}
        self.assertIn("each way, 0.50 of bare copies; of a chunk", self.pipeline(ratio_to_ceiling=0.0, link=link))

    def test_losses_have_a_row_each(self) -> None:
        lost = {"digest": "a1", "rounds": 121, "at_round": 20, "next_step_s": 0.254}
        figures = {
            "losses, calm": {"killed": None, "digest": "a1", "rounds": 121},
            "losses, server": {**lost, "killed": "server 0"},
            "losses, worker": {**lost, "killed": "worker 1", "digest": "b2"},
        }
        when = "killed after round 20, the next step 0.25 s later"
        self.assertEqual(
            self.words.losses_in_words(figures),
            [
                f"losses, server: server 0 {when}, the calm run's bits after 121 rounds",
                f"losses, worker: worker 1 {when}, other bits than the calm run's after 121 rounds",
            ],
        )

    def test_kernels_are_slow_only_with_many_values(self) -> None:
        bench = {"copy_gb_per_s": 4000, "results": [{"kernel": "one", "one_pass": True, "ratio": 0.5}]}
        lines = self.words.kernels_in_words({f"bench gpu-kernels, 2^{n} values": bench for n in (18, 26)})
        self.assertEqual(lines[0], "bench gpu-kernels, 2^18 values: copy 4000 GB/s; 1 kernels")
        self.assertTrue(lines[1].endswith("1 kernels, 1 of one pass below 0.85 of it; one 0.50"), lines[1])

    def test_the_machine_without_other_programs(self) -> None:
        machine: Any = importlib.import_module("gpu_ladder.machine")
        with tempfile.TemporaryDirectory() as empty, mock.patch.dict(os.environ, {"PATH": empty}):
            facts = machine.machine()
            self.assertGreater(facts["memory_available_mib"], 0)
            page = self.words.in_words({"status": "passed", "machine": facts, "steps": []})
            self.assertRegex(page, r"cores, \d+ GiB available, Linux")
            # A process with the name that the kernel keeps of MPS's control daemon.
            program = Path(empty) / "nvidia-cuda-mps-control"
            program.symlink_to("/bin/sleep")
            if machine.mps_runs():
                self.skipTest("MPS runs on this machine")
            daemon = subprocess.Popen([str(program), str(PATIENCE)])
            try:
                until = time.monotonic() + PATIENCE
                while not machine.mps_runs() and time.monotonic() < until:
                    time.sleep(0.01)
                self.assertTrue(machine.mps_runs())
            finally:
                daemon.kill()
                daemon.wait()


class Climbing(Parts):
    def setUp(self) -> None:
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def test_a_reason_to_skip_is_looked_for_only_within_the_budget(self) -> None:
        asked: list[float] = []

        def reason(left: float) -> str:
            asked.append(left)
            return "there is none"

        steps = self.steps
        rung = steps.Rung("one", lambda: iter([steps.Step(name, ["true"], skipped=reason) for name in ("a", "b")]))

        def climbed(budget: float) -> list[str]:
            asked.clear()
            ladder = steps.Ladder(self.folder, time.monotonic() + budget, 10.0, "^a$", dict(os.environ))
            ladder.climb(rung)
            return [step["reason"] for step in ladder.steps]

        self.assertEqual(climbed(0.5), [steps.SPENT, "not asked for"])
        self.assertEqual(asked, [])
        self.assertEqual(climbed(60.0), ["there is none", "not asked for"])
        (left,) = asked
        self.assertLessEqual(left, 60.0)

    def ladder(self, only: str | None = None) -> Any:
        return self.steps.Ladder(self.folder, time.monotonic() + 600, 600.0, only, environment())

    def kept(self) -> dict[str, bytes]:
        """Files of the results."""
        with tarfile.open(self.folder / "results.tar") as tar:
            return {name: gzip.decompress(tar.extractfile(name).read()) for name in tar.getnames()}  # type: ignore[union-attr]

    def test_mps_is_there_for_its_step_and_leaves_its_logs(self) -> None:
        self.program(
            "nvidia-cuda-mps-control",
            """case "$1" in
  -d) echo began >>"$CUDA_MPS_LOG_DIRECTORY/control.log"; sleep 300 & echo $! >"$CUDA_MPS_PIPE_DIRECTORY/pid" ;;
  *) read word; echo "$word" >>"$CUDA_MPS_LOG_DIRECTORY/control.log"; kill "$(cat "$CUDA_MPS_PIPE_DIRECTORY/pid")" ;;
esac""",
        )
        with mock.patch.dict(os.environ, {"PATH": f"{self.folder}:{os.environ['PATH']}"}):
            command = ["sh", "-c", 'test -s "$CUDA_MPS_PIPE_DIRECTORY/pid" && echo step >>"$0/control.log"', "{logs}"]
            step = self.rungs.under_mps(self.steps.Step("one", command))
            if step.skipped(60.0):
                self.skipTest(step.skipped(60.0))
            ladder = self.ladder()
            ladder.climb(self.steps.Rung("one", lambda: iter([step])))
        self.assertEqual([said["status"] for said in ladder.steps], ["passed"])
        self.assertEqual(self.kept()["one/logs/control.log.gz"].split(), [b"began", b"step", b"quit"])

    def test_losses_without_a_device_are_skipped(self) -> None:
        ladder = self.ladder()
        with mock.patch.object(self.rungs, "said_by", return_value="False\n"):
            ladder.climb(self.steps.Rung("losses", self.rungs.Rungs(BIN, []).losses))
        self.assertEqual(
            [(said["name"], said["status"], said["reason"]) for said in ladder.steps],
            [
                (f"losses, {lost}", "skipped", f"{sys.executable} has no torch with CUDA")
                for lost in ("calm", "server", "worker", "trainer")
            ],
        )

    def test_losses_without_a_calm_run_are_skipped(self) -> None:
        ladder = self.ladder("losses, server")
        with mock.patch.object(self.rungs, "said_by", return_value="True\n"):
            ladder.climb(self.steps.Rung("losses", self.rungs.Rungs(BIN, []).losses))
        self.assertEqual(ladder.steps[1]["reason"], "'losses, calm' has no digest to compare with")

    @unittest.skipIf(bool(not_built()), not_built())
    def test_losses_on_the_processors_end_with_the_calm_runs_bits(self) -> None:
        def steps() -> Any:
            for step in self.rungs.Rungs(BIN, []).losses():
                yield replace(step, command=[*step.command, "--bytes", "32768"], limit_s=300.0)

        ladder = self.ladder()
        with (
            mock.patch.object(self.rungs, "said_by", return_value="True\n"),
            mock.patch.dict(self.rungs.TORCH_PATHS, {"tributary": "host"}),
        ):
            ladder.climb(self.steps.Rung("losses", steps))
        self.assertEqual([said.get("reason", "") for said in ladder.steps], [""] * 4)
        figures = {said["name"]: said["figures"] for said in ladder.steps}
        killed = [None, "server 0", "worker 1", "trainer 1"]
        self.assertEqual([run["killed"] for run in figures.values()], killed)
        self.assertEqual(len({run["digest"] for run in figures.values()}), 1)
        for line in self.words.losses_in_words(figures):
            self.assertIn("the calm run's bits", line)
        kept = self.kept()
        self.assertIn(b'level = "debug"', kept["losses-worker/logs/run/worker-1.toml.gz"])
        self.assertIn("losses-worker/logs/run/logs/worker-1.log.gz", kept)

    def program(self, name: str, body: str) -> None:
        (self.folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (self.folder / name).chmod(0o755)

    def started(self) -> tuple[subprocess.Popen[str], int]:
        """A check whose second step hangs, and the process that the step would leave behind."""
        self.program("tributary", "echo tributary 9")
        self.program("nvidia-smi", "test \"$1\" != -L || echo 'GPU 0: one'")
        self.program("test_gpu_kernels", DOCTEST_END)
        self.program(
            "test_gpu_node",
            f"echo half of it; sleep 300 & echo $! >'{self.folder}/pid.new'; "
            f"mv '{self.folder}/pid.new' '{self.folder}/pid'; wait",
        )
        (self.folder / "temporary").mkdir()
        path = f"{self.folder}:{os.environ['PATH']}"
        check = subprocess.Popen(
            [sys.executable, str(CHECK), "--bin", str(self.folder), "--out", str(self.folder / "out"), "--json"],
            env={**os.environ, "PATH": path, "TMPDIR": str(self.folder / "temporary")},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        until = time.monotonic() + PATIENCE
        while not (self.folder / "pid").exists() and time.monotonic() < until:
            time.sleep(0.02)
        return check, int((self.folder / "pid").read_text())

    def gone(self, process: int) -> bool:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            try:
                state = Path("/proc", str(process), "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                return True
            if state == "Z":
                return True
            time.sleep(0.02)
        return False

    def test_a_signal_ends_the_step_and_keeps_what_it_printed(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(number.name):
                check, left_behind = self.started()
                # The page is there before anything ends.
                page = (self.folder / "out" / "gpu_check.txt").read_text()
                self.assertIn("not at its end, 2 steps so far, now test_gpu_node, sums and encodings", page)
                check.send_signal(number)
                check.send_signal(number)  # a second one does no harm
                said = json.loads(check.communicate(timeout=PATIENCE)[0])
                self.assertEqual(check.returncode, 1)
                self.assertTrue(self.gone(left_behind))
                self.assertEqual((said["status"], said["reason"]), ("failed", f"ended by {number.name} after 3 steps"))
                self.assertEqual(said["steps"][-1]["status"], "failed")
                self.assertEqual(said["steps"][-1]["reason"].splitlines()[0], f"this check was ended by {number.name}:")
                out = self.folder / "out"
                self.assertEqual(
                    {path.name for path in out.iterdir()}, {"gpu_check.txt", "gpu_check.json", "results.tar"}
                )
                self.assertIn(f"ended by {number.name}", (out / "gpu_check.txt").read_text())
                with tarfile.open(out / "results.tar") as tar:
                    names = tar.getnames()
                self.assertIn("test_gpu_node-sums-and-encodings/printed.txt.gz", names)
                self.assertIn("test_gpu_node-sums-and-encodings/threads.txt.gz", names)
                self.assertEqual(list((self.folder / "temporary").iterdir()), [])
                (self.folder / "pid").unlink()
                (self.folder / "temporary").rmdir()

    def test_a_step_ends_with_a_check_that_is_killed(self) -> None:
        check, _ = self.started()
        listed = Path(f"/proc/{check.pid}/task/{check.pid}/children").read_text().split()
        check.kill()
        check.communicate(timeout=PATIENCE)
        self.assertTrue(listed)
        for process in listed:
            self.assertTrue(self.gone(int(process)))


if __name__ == "__main__":
    unittest.main()
