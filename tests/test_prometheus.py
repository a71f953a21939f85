"""Metrics, alerts and the dashboard: as Prometheus wants them, and about names that daemons export."""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import urllib.request
from typing import ClassVar

SOURCE = pathlib.Path(sys.argv[1])
PROGRAMS = pathlib.Path(sys.argv[2])
PROMTOOL = sys.argv[3]
RULES = SOURCE / "packaging" / "prometheus"
# Metrics of Prometheus itself.
OTHERS = {"up"}
WORDS = {
    "and",
    "or",
    "unless",
    "by",
    "histogram_quantile",
    "without",
    "on",
    "ignoring",
    "count",
    "sum",
    "min",
    "max",
    "rate",
    "increase",
    "label_values",
}


def promtool(*words: str, text: str = "") -> str:
    done = subprocess.run([PROMTOOL, *words], input=text, capture_output=True, text=True, check=False)
    return f"{done.returncode}\n{done.stdout}{done.stderr}"


def names_in(expression: str) -> set[str]:
    """The metrics of an expression of PromQL: what is left of its names without labels, ranges and grouping."""
    bare = re.sub(r"\{[^}]*\}|\[[^]]*\]|\"[^\"]*\"", " ", expression)
    bare = re.sub(r"\b(by|without|on|ignoring)\s*\([^)]*\)", " ", bare)
    bare = re.sub(r",\s*\w+\s*\)", ")", bare)  # label_values(METRIC, LABEL)
    return set(re.findall(r"[a-zA-Z_]\w*", re.sub(r"\b\d\S*", " ", bare))) - WORDS - OTHERS


class Daemon:
    """A daemon in a folder of its own; it ends with the block."""

    def __init__(self, program: str, config: pathlib.Path) -> None:
        log = config.with_suffix(".log")
        with log.open("w") as errors:
            words = [str(PROGRAMS / program), "--config", str(config)]
            self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith("ready "):
            self.process.kill()
            self.process.communicate()
            raise AssertionError(f"{program} is not ready: {log.read_text()}")
        self.ready = json.loads(line[len("ready ") :])

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://{self.ready['admin']}/metrics", timeout=30) as answer:
            return answer.read().decode()

    def end(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=60)


class Prometheus(unittest.TestCase):
    texts: ClassVar[dict[str, str]] = {}

    @classmethod
    def setUpClass(cls) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "server.toml").write_text(
                f'[server]\ncoordinator = "ipc://{folder}/control"\n[store]\npath = "{folder}/store"\n'
            )
            server = Daemon("tributary-server", folder / "server.toml")
            try:
                (folder / "worker.toml").write_text(
                    f'[worker]\ncoordinator = "{server.ready["coordinator"]}"\nsocket = "{folder}/worker.sock"\n'
                )
                worker = Daemon("tributary-worker", folder / "worker.toml")
                try:
                    cls.texts = {"server": server.metrics(), "worker": worker.metrics()}
                finally:
                    worker.end()
            finally:
                server.end()

    def exported(self) -> set[str]:
        kinds = re.findall(r"^# TYPE (\S+) (\S+)", "".join(self.texts.values()), re.MULTILINE)
        names = {name for name, _ in kinds}
        names |= {
            f"{name}_{part}" for name, kind in kinds if kind == "histogram" for part in ("bucket", "sum", "count")
        }
        self.assertGreater(len(names), 50)
        return names

    def test_conventions(self) -> None:
        for daemon, text in self.texts.items():
            with self.subTest(daemon=daemon):
                self.assertEqual(promtool("check", "metrics", text=text), "0\n")
        self.assertIn(
            "counter metrics should have", promtool("check", "metrics", text="# HELP a b\n# TYPE a counter\na 1\n")
        )

    def test_rules(self) -> None:
        said = promtool("check", "config", str(RULES / "prometheus.yaml"))
        self.assertTrue(said.startswith("0\n"), said)
        with tempfile.TemporaryDirectory() as name:
            for file in (RULES / "alerts.yaml", SOURCE / "tests" / "alerts_test.yaml"):
                shutil.copy(file, name)
            said = promtool("test", "rules", f"{name}/alerts_test.yaml")
        self.assertTrue(said.startswith("0\n"), said)

    def test_alerts_are_about_what_is_exported(self) -> None:
        expressions = re.findall(r"^ *expr: (.*)$", (RULES / "alerts.yaml").read_text(), re.MULTILINE)
        self.assertGreater(len(expressions), 5)
        for expression in expressions:
            with self.subTest(expression):
                self.assertLessEqual(names_in(expression), self.exported())

    def test_the_dashboard_is_about_what_is_exported(self) -> None:
        dashboard = json.loads((RULES / "dashboard.json").read_text())
        expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
        expressions += [one["query"] for one in dashboard["templating"]["list"] if one["type"] == "query"]
        self.assertGreater(len(expressions), 10)
        for expression in expressions:
            with self.subTest(expression):
                self.assertTrue(names_in(expression))
                self.assertLessEqual(names_in(expression), self.exported())
        rules = [
            {"record": f"dashboard:{n}", "expr": text.replace("$job", ".*")}
            for n, text in enumerate(expressions)
            if "label_values" not in text
        ]
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:  # that they are PromQL; JSON is YAML
            json.dump({"groups": [{"name": "dashboard", "rules": rules}]}, file)
            file.flush()
            said = promtool("check", "rules", file.name)
        self.assertTrue(said.startswith("0\n"), said)

    def test_a_wrong_name_is_found(self) -> None:
        self.assertFalse(names_in("rate(tributary_nonsense_total[1m]) / 2") <= self.exported())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
