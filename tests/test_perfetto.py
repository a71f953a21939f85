"""A trace of a job that trains, opened in Perfetto itself, in headless Chromium.

python3 tests/test_perfetto.py SOURCE PROGRAMS PERFETTO

PERFETTO: the folder of its user interface (scripts/fetch_perfetto.sh), which has its trace processor, too.
"""

import functools
import http.server
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import unittest
from typing import Any, ClassVar

from eventually import PATIENCE, eventually
from test_page import Browser

ROUNDS = 20


class Pages(http.server.SimpleHTTPRequestHandler):
    """Perfetto, and the trace next to it."""

    trace = ""
    extensions_map: ClassVar[dict[str, str]] = {
        **http.server.SimpleHTTPRequestHandler.extensions_map,
        ".wasm": "application/wasm",
    }

    def translate_path(self, path: str) -> str:
        return self.trace if path.startswith("/trace.json") else super().translate_path(path)

    def log_message(self, *_: object) -> None:
        pass


def asked(browser: Browser, query: str) -> list[list[Any]]:
    """Returns the rows that Perfetto's trace processor answers."""
    columns = re.findall(r"as (\w+)", query)
    browser.run(f"""
        window.answer = null;
        (async () => {{
          try {{
            const rows = [];
            const result = await app.trace.engine.query({json.dumps(query)});
            for (const at = result.iter({{}}); at.valid(); at.next()) {{
              rows.push({json.dumps(columns)}.map((name) => {{
                const value = at.get(name);
                return typeof value === "bigint" ? Number(value) : value;
              }}));
            }}
            window.answer = {{rows}};
          }} catch (error) {{
            window.answer = {{rows: [["error", String(error)]]}};
          }}
        }})()""")
    return list(eventually(lambda: browser.run("return window.answer"))["rows"])


class Perfetto(unittest.TestCase):
    def test_it_opens_a_trace_without_an_error_and_has_each_chunks_way(self) -> None:
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))  # outlives the browser
        said = self.record(folder)
        chunks = int(re.findall(r", (\d+) chunks from ready to answered", said)[0])
        self.assertEqual(chunks % (2 * ROUNDS), 0, said)  # each, on two nodes, in each round
        Pages.trace = str(folder / "trace.json")
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Pages, directory=str(PERFETTO)))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        browser = Browser(folder)
        self.addCleanup(browser.close)
        at = f"http://127.0.0.1:{server.server_port}"
        browser.open(f"{at}/#!/?url={at}/trace.json")
        opened = eventually(lambda: "trace.json" in browser.run("return document.title"))
        self.assertTrue(opened, browser.run("return document.body.innerText"))
        wrong = "select name as name, value as value from stats where severity in ('error', 'data_loss') and value > 0"
        self.assertEqual(asked(browser, wrong), [])
        for part in ("push", "answer"):
            ways = asked(browser, f"select count(*) as count from slice where name = '{part}'")
            self.assertEqual(ways, [[chunks]])
        flows = asked(browser, "select count(*) as count from flow")[0][0]
        self.assertGreaterEqual(flows, chunks)
        self.assertEqual(flows % chunks, 0)
        processes = {row[0] for row in asked(browser, "select name as name from process where name is not null")}
        self.assertEqual(
            processes,
            {"server 0", "server 1", *(f"worker of node {node}" for node in range(2))}
            | {f"rank {rank} (node {rank // 2})" for rank in range(4)},
        )

    def record(self, folder: pathlib.Path) -> str:
        """A trace of a cluster that ends with this; what the tool says of it."""
        tool = str(PROGRAMS / "tributary")
        command = [tool, "up", str(SOURCE / "configs" / "fashion-mnist.toml"), "--servers", "2", "--nodes", "2"]
        command += ["--ranks-per-node", "2", "--base-dir", str(folder / "run"), "--set", "train.epochs=10000"]
        with (folder / "up.log").open("w") as log:
            cluster = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            known = eventually(lambda: (folder / "run" / "cluster.json").exists() or cluster.poll() is not None)
            self.assertTrue(known and cluster.poll() is None, (folder / "up.log").read_text())
            out = ["--out", str(folder / "trace.json"), "--base-dir", str(folder / "run")]

            def traced() -> str:
                order = [tool, "trace", "fashion-mnist", "--rounds", str(ROUNDS), *out]
                done = subprocess.run(order, check=False, capture_output=True, text=True, timeout=PATIENCE)
                whole = done.returncode == 0 and "rounds are whole" not in done.stderr  # the order came in time
                return done.stdout if whole else ""

            said = str(eventually(traced))
            self.assertTrue(said, (folder / "up.log").read_text())
            return said
        finally:
            cluster.terminate()
            cluster.wait(PATIENCE)


if __name__ == "__main__":
    SOURCE, PROGRAMS, PERFETTO = (pathlib.Path(path).resolve() for path in sys.argv[1:4])
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]], verbosity=2)
