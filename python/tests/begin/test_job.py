"""From torch optimizers and job files to a job's text; and what the library's shell does."""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import types
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn
from trainer import OPTIMIZERS

from tributary import Error, _abi, _library
from tributary.torch._base.names import default_name
from tributary.torch._session.round_watch import RoundWatch
from tributary.torch._steps.formula import formula_of
from tributary.torch._steps.sections import Job, build, read
from tributary.torch.lion import Lion


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))]


class Formulas(unittest.TestCase):
    def job(self, optimizer: torch.optim.Optimizer, given: Any = None, **options: Any) -> dict[str, Any]:
        formula = formula_of(optimizer)
        job: dict[str, Any] = json.loads(build(read(given), "mine", formula, options).text)
        return job

    def test_sgd(self) -> None:
        job = self.job(torch.optim.SGD(parameters(), lr=0.5, momentum=0.9, nesterov=True, weight_decay=0.1))
        self.assertEqual(job["job"], {"name": "mine"})
        said = {"name": "sgd", "momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "dampening": 0.0}
        self.assertEqual({key: job["optimizer"].get(key) for key in said}, said)
        self.assertNotIn("nesterov", self.job(torch.optim.SGD(parameters(), lr=0.5))["optimizer"])

    def test_adam_and_its_twin(self) -> None:
        adam = torch.optim.Adam(parameters(), betas=(0.8, 0.9))
        self.assertEqual(self.job(adam)["optimizer"]["name"], "adam")
        self.assertEqual(self.job(torch.optim.AdamW(parameters()))["optimizer"]["name"], "adamw")
        if "decoupled_weight_decay" in torch.optim.Adam(parameters()).defaults:
            decoupled = torch.optim.Adam(parameters(), decoupled_weight_decay=True)
            self.assertEqual(self.job(decoupled)["optimizer"]["name"], "adamw")

    def test_adagrad_and_lion(self) -> None:
        adagrad = self.job(torch.optim.Adagrad(parameters(), lr_decay=0.1, initial_accumulator_value=0.2))["optimizer"]
        self.assertEqual((adagrad["lr_decay"], adagrad["initial_accumulator"]), (0.1, 0.2))
        self.assertEqual(self.job(Lion(parameters()))["optimizer"]["name"], "lion")

    def test_each_optimizer_of_the_servers(self) -> None:
        """Each name in kernels/step/optimizers.h has a torch optimizer, which tests with daemons train."""
        kernels = Path(__file__).resolve().parents[3] / "kernels"
        headers = re.findall(r'#include "kernels/(.*)"', (kernels / "step" / "optimizers.h").read_text())
        named = [re.search(r'kKind = \{\s*\.name = "(\w+)"', (kernels / header).read_text()) for header in headers]
        names = {found.group(1) for found in named if found} | {"adam"}  # which adamw.h includes
        self.assertEqual(len(names), len(headers) + 1)
        made = {self.job(make(parameters()))["optimizer"]["name"] for make in OPTIMIZERS.values()}
        self.assertEqual(made, names)

    def test_further_groups_have_what_differs(self) -> None:
        one, two = parameters()
        groups = [{"params": [one]}, {"params": [two], "weight_decay": 0.0, "betas": (0.9, 0.95)}]
        further = self.job(torch.optim.AdamW(groups, weight_decay=0.1))["groups"]
        self.assertEqual(further, [{"weight_decay": 0.0, "beta2": 0.95}])

    def test_a_subclass_is_not_known(self) -> None:
        class Mine(torch.optim.AdamW):
            pass

        self.assertEqual(formula_of(Mine(parameters())).why, "the servers have no Mine")

    def test_many_groups(self) -> None:
        groups = [{"params": [nn.Parameter(torch.ones(1))]} for _ in range(129)]
        self.assertIn("129 parameter groups", formula_of(torch.optim.SGD(groups, lr=0.1)).why)

    def test_lion_is_the_paper(self) -> None:
        p = nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))
        opt = Lion([p], lr=0.1, weight_decay=0.5)
        p.grad = torch.tensor([0.5, -0.5, 0.0])
        opt.step()
        torch.testing.assert_close(p.detach(), torch.tensor([0.95 - 0.1, -1.9 + 0.1, 2.85]))
        torch.testing.assert_close(opt.state[p]["exp_avg"], torch.tensor([0.005, -0.005, 0.0]))


class Files(unittest.TestCase):
    def build(self, text: str, **sections: Any) -> Job:
        formula = formula_of(torch.optim.AdamW(parameters()))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "job.toml"
            path.write_text(text)
            return build(read(path), "program", formula, sections)

    def test_what_is_given_stays(self) -> None:
        job = self.build('[job]\nname = "file"  # mine\n\n[snapshot]\nevery_s = 5\n', gate={"clip_norm": 1.0})
        self.assertEqual(job.name, "file")
        sections = json.loads(job.text)
        self.assertEqual(sections["job"], {"name": "file"})
        self.assertEqual(sections["gate"], {"clip_norm": 1.0})

    def test_a_section_is_completed_in_its_place(self) -> None:
        job = self.build('[encoding]\npull = "bf16"\n[snapshot]\nevery_s = 5\n', encoding={"push": "int8"})
        self.assertEqual(json.loads(job.text)["encoding"], {"pull": "bf16", "push": "int8"})

    def test_contradictions(self) -> None:
        with self.assertRaisesRegex(ValueError, r"push='int8' contradicts encoding.push = 'bf16' of .*job.toml"):
            self.build('[encoding]\npush = "bf16"\n', encoding={"push": "int8"})
        with self.assertRaisesRegex(
            ValueError, "optimizer.name = 'sgd', but the torch optimizer is the servers' 'adamw'"
        ):
            self.build('[optimizer]\nname = "sgd"\n')
        with self.assertRaisesRegex(ValueError, r"and 1 \[\[groups\]\].*give 0"):
            self.build('[optimizer]\nname = "adamw"\n[[groups]]\nweight_decay = 0.0\n')

    def test_the_files_optimizer(self) -> None:
        job = self.build('[optimizer]\nname = "adamw"\neps = 1e-8\n[schedule]\nname = "cosine"\ntotal_rounds = 9\n')
        self.assertEqual(json.loads(job.text)["optimizer"]["beta1"], 0.9)
        self.assertTrue(job.scheduled)
        self.assertEqual(self.build('[optimizer]\nname = "mean"\n').optimizer, "mean")

    def test_sections_as_dicts(self) -> None:
        given = read({"snapshot": {"every_rounds": 3}, "job": {"name": "x"}})
        self.assertEqual(given.get("snapshot", "every_rounds"), "3")
        self.assertEqual(given.get("job", "name"), "x")


class DefaultNames(unittest.TestCase):
    def test_a_script(self) -> None:
        with mock.patch("sys.argv", ["/home/me/my train.py"]):
            self.assertEqual(default_name([]), "my-train")
            self.assertEqual(default_name(["my-train"]), "my-train-2")

    def test_a_package_or_module(self) -> None:
        asks = "from tributary.torch._base.names import default_name\nprint(default_name([]))\n"
        with tempfile.TemporaryDirectory() as folder:
            for package in ("cats", "dogs"):
                (Path(folder) / package).mkdir()
                for file in ("__init__.py", "sub.py", "__main__.py"):
                    (Path(folder) / package / file).write_text("" if file == "__init__.py" else asks)
            named = [
                subprocess.run(
                    [sys.executable, *command],
                    env={**os.environ, "PYTHONPATH": f"{os.environ['PYTHONPATH']}:{folder}"},
                    capture_output=True,
                    text=True,
                    check=True,
                ).stdout.strip()
                for command in (["-m", "cats"], ["-m", "dogs"], ["-m", "dogs.sub"], [f"{folder}/cats"])
            ]
        self.assertEqual(named, ["cats", "dogs", "sub", "cats"])

    def test_a_notebook_has_none(self) -> None:
        notebook = types.ModuleType("__main__")
        with (
            mock.patch.dict(sys.modules, __main__=notebook),
            mock.patch("sys.ps1", "In : ", create=True),
            self.assertRaisesRegex(ValueError, "a notebook.* has no name .*: give name="),
        ):
            default_name([])


class RoundsThatDoNotComplete(unittest.TestCase):
    def setUp(self) -> None:
        self.said: list[str] = []
        self.watch = RoundWatch(self.said.append, look_s=0.01, quiet_s=0.2)
        self.addCleanup(self.watch.close)

    def wait(self, round: int, seconds: float) -> None:
        with self.watch.waiting(round):
            time.sleep(seconds)

    def test_nothing_is_said_of_those_that_do(self) -> None:
        for round in range(1, 20):
            self.wait(round, 0.01)
        time.sleep(0.5)  # computing is no waiting
        self.assertEqual(self.said, [])

    def test_it_is_said_and_more_and_more_rarely(self) -> None:
        self.wait(1, 0.01)
        self.wait(7, 1.2)
        self.assertIn("no parameters of round 7 for", self.said[0])
        self.assertIn("`tributary status` says why", self.said[0])
        self.assertLessEqual(len(self.said), 3)  # at 0.2, 0.4 and 0.8 s
        self.assertGreaterEqual(len(self.said), 2)

    def test_other_waits_are_told_too(self) -> None:
        with self.watch.waiting_for("values of the other ranks"):
            self.assertIsNone(self.watch.awaited)
            time.sleep(0.35)
        self.assertIn("no values of the other ranks for", self.said[0])

    def test_rounds_that_usually_take_long_are_given_time(self) -> None:
        for round in range(1, 5):
            self.wait(round, 0.15)
        self.wait(5, 0.4)  # more than is quiet, less than four times as usual
        self.assertEqual(self.said, [])

    def test_the_thread_ends_with_it(self) -> None:
        self.wait(1, 0.01)
        thread = self.watch._thread
        assert thread is not None
        del self.watch
        self.doCleanups()
        thread.join(10)
        self.assertFalse(thread.is_alive())


class Shell(unittest.TestCase):
    HEADER = Path(__file__).resolve().parents[3] / "session" / "tributary.h"

    def test_all_functions_of_the_header(self) -> None:
        text = self.HEADER.read_text()
        names = set(re.findall(r"\b(tributary_\w+)\(", re.sub(r"/\*.*?\*/", "", text, flags=re.S)))
        self.assertEqual(names, set(_abi.SIGNATURES))

    def test_structs_have_the_headers_members(self) -> None:
        text = re.sub(r"/\*.*?\*/", "", self.HEADER.read_text(), flags=re.S)
        for name, struct in (
            ("tensor", _abi.CTensor),
            ("options", _abi.COptions),
            ("view", _abi.CView),
            ("gate", _abi.CGate),
            ("stats", _abi.CStats),
        ):
            body = re.search(rf"typedef struct tributary_{name} {{(.*?)}} tributary_{name};", text, flags=re.S)
            assert body is not None
            members = re.sub(r"\(\*(\w+)\)\([^)]*\)", r"\1", body.group(1))
            declared = [
                word.strip(" *\n").split(" ")[-1].lstrip("*")
                for line in members.split(";")
                for word in line.split(",")
                if word.strip()
            ]
            self.assertEqual([member for member, _ in struct._fields_], declared, name)

    def test_a_library_that_is_not_there(self) -> None:
        with mock.patch.dict(os.environ, {"TRIBUTARY_LIBRARY": "/no/such.so"}):
            with self.assertRaisesRegex(Error, "TRIBUTARY_LIBRARY=/no/such.so: there is no such file"):
                _library.load()
            os.environ.pop("TRIBUTARY_LIBRARY")
            beside = Path(_library.__file__).parent / "lib" / "libtributary.so.1"
            if not beside.exists():
                with self.assertRaisesRegex(Error, "install the wheel"):
                    _library.find()

    def test_a_library_of_something_else(self) -> None:
        libc = ctypes.util.find_library("c") if hasattr(ctypes, "util") else None
        with self.assertRaisesRegex(Error, "cannot load|has no function tributary_version"):
            _library.Library(libc or "libc.so.6")


if __name__ == "__main__":
    unittest.main()
