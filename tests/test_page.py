"""The coordinator's page in a browser: its facts with and without JavaScript, live, inert, and of nobody else.

    python3 tests/test_page.py SOURCE PROGRAMS [--pictures FOLDER]

--pictures: page.png and top.png are made there instead, of the page and of what `tributary top` prints in a terminal.
The pictures need Pillow; /usr/bin/python3 has it with Debian's python3-pil.
"""

import argparse
import base64
import contextlib
import fcntl
import html
import http.client
import json
import os
import pathlib
import pty
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest
import urllib.request
from collections.abc import Iterator
from typing import Any, ClassVar

from eventually import PATIENCE, eventually

JOB = "fashion-mnist"


class Browser:
    """Headless Chromium, led by chromedriver over WebDriver's protocol. Ends with close()."""

    def __init__(self, folder: pathlib.Path) -> None:
        words = ["chromedriver", "--port=0", f"--log-path={folder}/chromedriver.log"]
        self.driver = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        try:
            assert self.driver.stdout is not None
            started = next(line for line in self.driver.stdout if "started successfully on port" in line)
            self.at = f"http://127.0.0.1:{int(started.rstrip().rstrip('.').split()[-1])}"
            chrome = {
                "args": [
                    "--headless=new",
                    "--no-sandbox",  # which root cannot have; the page is our own
                    "--disable-dev-shm-usage",
                    "--disable-gpu",
                    "--disable-lcd-text",  # pictures have fewer colours
                    f"--user-data-dir={folder}/chromium",
                ]
            }
            wanted = {"goog:chromeOptions": chrome, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
            session = self.call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
            self.at += f"/session/{session['sessionId']}"
        except BaseException:
            self.driver.kill()
            self.driver.communicate()
            raise

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.at + path, method=method, data=data)
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.load(answer)["value"]

    def open(self, url: str) -> None:
        self.call("POST", "/url", {"url": url})

    def run(self, script: str) -> Any:
        return self.call("POST", "/execute/sync", {"script": script, "args": []})

    def devtools(self, command: str, **parameters: Any) -> Any:
        return self.call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def log(self, kind: str) -> list[Any]:
        """Returns the entries since the last call."""
        return self.call("POST", "/se/log", {"type": kind})

    def resize(self, width: int, height: int) -> None:
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    def rows(self, heading: str) -> list[dict[str, str]]:
        """Returns each row's texts by column, of the table with that heading."""
        return self.run(f"""
            const section = [...document.querySelectorAll("section")].find(
                one => one.querySelector("h2").textContent === {json.dumps(heading)});
            if (!section) return [];
            const columns = [...section.querySelectorAll("thead th[scope=col]")].map(one => one.textContent);
            return [...section.querySelectorAll("tbody tr")].map(row => Object.fromEntries(
                [...row.children].map((cell, i) => [columns[i], cell.textContent])));""")

    def why(self) -> str:
        return self.run('return [...document.querySelectorAll(".why")].map(one => one.textContent).join("\\n")')

    def picture(self, path: pathlib.Path) -> None:
        taken = self.devtools("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(taken["data"]))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.call("DELETE", "")
        self.driver.terminate()
        self.driver.communicate(timeout=PATIENCE)


class Cluster:
    """A job that trains on two servers and two nodes of `tributary run`. Ends with close()."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        command = [str(PROGRAMS / "tributary"), "run", "--servers", "2", "--nodes", "2", "--ranks-per-node", "2"]
        command += ["--lanes", "1", "--base-dir", str(folder / "run"), "--", str(PROGRAMS / "tributary-train")]
        command += ["--job", str(SOURCE / "configs" / "fashion-mnist.toml"), "--quiet"]
        command += ["--set", "train.epochs=10000", "--set", "snapshot.every_s=5", "--slow-us-per-sample", "1500"]
        with (folder / "run.log").open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        self.workers: list[subprocess.Popen[bytes]] = []
        self.admin = ""
        try:
            assert eventually(self.known), (folder / "run.log").read_text()
            self.admin = self.daemons()["server 0"]["admin"]
            assert eventually(lambda: self.job().get("min_version", 0) >= 5), (folder / "run.log").read_text()
        except BaseException:
            self.close()
            raise

    def known(self) -> bool:
        assert self.process.poll() is None, (self.folder / "run.log").read_text()
        return (self.folder / "run" / "cluster.json").exists()

    def daemons(self) -> dict[str, dict[str, Any]]:
        cluster = json.loads((self.folder / "run" / "cluster.json").read_text())
        return {one["name"]: one for one in cluster["servers"] + cluster["workers"]}

    def job(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://{self.admin}/status", timeout=PATIENCE) as answer:
            status = json.load(answer)
        return next((one for one in status["coordinator"]["jobs"] if one["name"] == JOB), {})

    def add_worker(self, name: str) -> None:
        """Adds a daemon of that name to the job's."""
        coordinator = json.loads((self.folder / "run" / "cluster.json").read_text())["coordinator"]
        config = self.folder / "another.toml"
        config.write_text(
            f'[worker]\nname = {json.dumps(name)}\ncoordinator = "{coordinator}"\nsocket = "{self.folder}/another"\n'
        )
        command = [str(PROGRAMS / "tributary-worker"), "--config", str(config)]
        with (self.folder / "another.log").open("w") as log:
            self.workers.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))

    def send(self, method: str, path: str, **fields: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(self.admin, timeout=PATIENCE)
        connection.putrequest(method, path, skip_host="Host" in fields)
        for name, value in fields.items():
            connection.putheader(name, value)
        connection.putheader("Connection", "close")
        connection.endheaders()
        return connection.getresponse()

    def close(self) -> None:
        for process in [*self.workers, self.process]:
            process.terminate()
        for process in [*self.workers, self.process]:
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def standing_still(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def top_in_a_terminal(base_dir: pathlib.Path) -> str:
    """Returns the screen of `tributary top` in a terminal after some updates."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 60, 200, 0, 0))
    command = [str(PROGRAMS / "tributary"), "top", "--base-dir", str(base_dir), "--times", "5"]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # EIO: the other side is closed
        while more := os.read(ours, 65536):
            shown += more
    os.close(ours)
    process.wait(PATIENCE)
    return shown.decode().split("\033[H\033[J")[-1].replace("\r\n", "\n")


class Page(unittest.TestCase):
    folder: ClassVar[pathlib.Path]
    cluster: ClassVar[Cluster]
    browser: ClassVar[Browser]
    at: ClassVar[str]

    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.cluster = Cluster(cls.folder)
        cls.addClassCleanup(cls.cluster.close)
        cls.browser = Browser(cls.folder)
        cls.addClassCleanup(cls.browser.close)
        cls.at = f"http://{cls.cluster.admin}/"

    def setUp(self) -> None:
        self.browser.resize(1280, 900)
        self.browser.devtools("Emulation.setScriptExecutionDisabled", value=False)
        self.assertTrue(eventually(lambda: not self.cluster.job()["why_no_round"]))

    def check_facts(self) -> None:
        (job,) = self.browser.rows("Jobs")
        self.assertEqual(job["Job"], JOB)
        self.assertEqual(job["Phase"], "running")
        self.assertEqual(job["Nodes"], "2 of 2")
        self.assertEqual(job["Ranks"], "4")
        self.assertGreaterEqual(int(job["Round"].split()[0]), 5)
        self.assertIn("rounds get done", self.browser.why())
        figures = {row["Figure"]: row for row in self.browser.rows("What trainers say")}
        self.assertTrue(0.0 < float(figures["loss"]["Mean"]) < 10.0, figures)
        nodes = self.browser.rows("Nodes, and where a round's time goes")
        self.assertEqual([row["Node"] for row in nodes], ["node 0 (worker node-0)", "node 1 (worker node-1)"])
        for row in nodes:
            self.assertGreater(float(row["Compute"].split()[0]), 1.0, row)
            self.assertTrue(row["Network"].endswith(" ms"), row)
        makers = self.browser.rows("Rounds by who makes them")
        self.assertEqual([row["By"] for row in makers], ["server 0", "server 1"])
        for row in makers:
            self.assertRegex(row["Rounds behind"], r"^\d+$")
            self.assertRegex(row["Share of the model"], r"^\d+\.\d %, [\d.]+ [KMG]?B$")
        daemons = {row["Daemon"]: row for row in self.browser.rows("Daemons")}
        for name in ("server 0", "server 1", "worker node-0", "worker node-1"):
            self.assertRegex(daemons[name]["Heard"], r"^\d+\.\d s ago$")
            self.assertRegex(daemons[name]["Payload in"], r"^[\d.]+ [KMG]B$")
            self.assertRegex(daemons[name]["Payload out"], r"^[\d.]+ [KMG]B$")
        self.assertIn("opens view 1 with 2 nodes", "\n".join(self.column("Events of the last hour", "What")))

    def rows_appear(self) -> None:
        """Waits until nodes and trainers have reported, which takes some rounds."""
        self.assertTrue(eventually(lambda: self.cluster.job()["figures"] and len(self.cluster.job()["paces"]) == 2))

    def shown_round(self) -> int:
        return int(self.browser.rows("Jobs")[0]["Round"].split()[0])

    def column(self, heading: str, column: str) -> list[str]:
        return [row[column] for row in self.browser.rows(heading)]

    def test_facts_without_javascript(self) -> None:
        self.rows_appear()
        self.browser.devtools("Emulation.setScriptExecutionDisabled", value=True)
        self.browser.open(self.at)
        self.check_facts()
        (job,) = self.browser.rows("Jobs")
        self.assertEqual(job["Rounds/s"], "-")
        self.assertIn("Without JavaScript", self.browser.run('return document.querySelector("header").innerText'))

    def test_live(self) -> None:
        self.rows_appear()
        self.browser.log("performance")
        self.browser.log("browser")
        self.browser.open(self.at)
        self.check_facts()
        self.browser.run("window.loaded = 'once'")
        first = self.shown_round()
        self.assertTrue(eventually(lambda: self.shown_round() > first + 3))
        self.assertTrue(eventually(lambda: self.column("Jobs", "Rounds/s") != ["-"]))
        self.assertGreater(float(self.column("Jobs", "Rounds/s")[0]), 0.0)
        course = 'return document.querySelectorAll("[data-course] svg[aria-label*=\\"loss from\\"] polyline").length'
        self.assertTrue(eventually(lambda: self.browser.run(course) == 1))
        self.assertTrue(eventually(lambda: self.column("Daemons", "MB/s in")[0] not in ("-", "0.00")))
        self.check_facts()
        self.assertEqual(self.browser.run("return window.loaded"), "once")
        # Nothing was asked of anybody else, and nothing was refused.
        asked = [json.loads(entry["message"])["message"] for entry in self.browser.log("performance")]
        urls = [one["params"]["request"]["url"] for one in asked if one["method"] == "Network.requestWillBeSent"]
        self.assertGreater(len(urls), 1)  # the page, and what its script asks
        self.assertEqual({url for url in urls if url != "data:,"}, {self.at})
        self.assertEqual(self.browser.log("browser"), [])
        # The log would show a refusal by the page's policy.
        self.browser.run("""
            const script = document.createElement("script");
            script.textContent = "window.owned = true";
            document.body.append(script);""")
        self.assertIn("Content Security Policy", json.dumps(self.browser.log("browser")))
        self.assertIsNone(self.browser.run("return window.owned"))

    def test_names_are_inert(self) -> None:
        name = "<img src=x onerror='window.owned = true'><script>window.owned = true</script>\""
        self.cluster.add_worker(name)
        self.browser.open(self.at)
        self.browser.log("browser")
        self.assertTrue(eventually(lambda: f"worker {name}" in self.column("Daemons", "Daemon")))
        self.assertIn(f"worker {name} is there", self.column("Events of the last hour", "What"))
        self.assertIsNone(self.browser.run("return window.owned"))
        self.assertEqual(self.browser.run('return document.querySelectorAll("main img, main script").length'), 0)
        self.assertEqual(self.browser.log("browser"), [])

    def test_who_may_ask(self) -> None:
        page = self.cluster.send("GET", "/")
        self.assertEqual((page.status, page.getheader("Content-Type")), (200, "text/html; charset=utf-8"))
        policy = str(page.getheader("Content-Security-Policy"))
        self.assertTrue(policy.startswith("default-src 'none'; script-src 'nonce-"), policy)
        self.assertNotIn("unsafe", policy)
        self.assertEqual(page.getheader("X-Content-Type-Options"), "nosniff")
        self.assertEqual(page.getheader("Cache-Control"), "no-store")
        self.assertNotEqual(policy, self.cluster.send("GET", "/").getheader("Content-Security-Policy"))
        token = (self.folder / "run" / "admin.token").read_text().strip()
        self.assertEqual(self.cluster.send("POST", "/").status, 401)
        for method in ("POST", "PUT", "DELETE", "HEAD"):
            self.assertEqual(self.cluster.send(method, "/", Authorization=f"Bearer {token}").status, 405, method)
        self.assertEqual(self.cluster.send("GET", "/", Host="rebound.example").status, 403)
        self.assertEqual(self.cluster.send("GET", "/", Origin="http://other.example").status, 403)
        self.cluster.admin, here = self.cluster.daemons()["server 1"]["admin"], self.cluster.admin
        try:
            self.assertEqual(self.cluster.send("GET", "/").status, 404)  # it has no coordinator
        finally:
            self.cluster.admin = here

    def test_a_server_that_stands_still_is_named(self) -> None:
        self.browser.open(self.at)
        before = self.cluster.job()["max_version"]
        with standing_still(self.cluster.daemons()["server 1"]["pid"]):
            since = time.monotonic()
            named = eventually(lambda: "server 1" in self.browser.why(), 15)
            took = time.monotonic() - since
            self.assertTrue(named, self.browser.why())
        print(f"page: a server that stands still is named after {took:.1f} s: {self.browser.why()}")
        self.assertTrue(eventually(lambda: self.cluster.job()["max_version"] > before + 5))
        self.assertTrue(eventually(lambda: "rounds get done" in self.browser.why()))

    def test_losses_and_recoveries_are_events(self) -> None:
        self.browser.open(self.at)
        before = self.cluster.job()
        os.kill(self.cluster.daemons()["worker 1"]["pid"], signal.SIGKILL)
        self.assertTrue(eventually(lambda: self.cluster.job()["view"] > before["view"]))
        self.assertTrue(eventually(lambda: self.cluster.job()["max_version"] > before["max_version"] + 5))
        wanted = ["lost worker node-1", f"leaves view {before['view']}: ", f"opens view {before['view'] + 1} "]

        def missing() -> list[str]:
            words = "\n".join(self.column("Events of the last hour", "What"))
            return [event for event in wanted if event not in words]

        self.assertTrue(eventually(lambda: not missing()), f"{missing()} are not among the events")

    def test_on_a_phone(self) -> None:
        self.rows_appear()
        self.browser.resize(390, 800)
        self.browser.open(self.at)
        self.check_facts()
        wide = self.browser.run("""
            const screen = window.innerWidth, excess = document.documentElement.scrollWidth - screen;
            if (excess <= 0) return [];
            const beyond = element => element.getBoundingClientRect().right > screen;
            // One pixel by which no element is too wide is a fraction that was rounded.
            if (excess === 1 && ![...document.querySelectorAll("body *")].some(beyond)) return [];
            const wide = element => element.getBoundingClientRect().left + element.scrollWidth > screen;
            const found = [...document.querySelectorAll("body *")]
                .filter(element => wide(element) || beyond(element))
                .map(element => element.outerHTML.slice(0, 300));
            return found.length ? found : ["no element of it"];
        """)
        self.assertEqual(wide, [], "wider than the screen")

    def test_top_says_the_same(self) -> None:
        self.rows_appear()
        shown = top_in_a_terminal(self.folder / "run")
        for words in ("ROUNDS/S", JOB, "loss ", "DAEMON", "server 1", "worker node-1", "EVENT"):
            self.assertIn(words, shown)

    def test_a_worker_that_serves_the_coordinator_has_the_page(self) -> None:
        config = self.folder / "alone.toml"
        config.write_text(
            f'[worker]\nname = "alone"\ncoordinator = "ipc://{self.folder}/control"\nserve_coordinator = true\n'
            f'socket = "{self.folder}/alone"\nadmin = "127.0.0.1:0"\n'
        )
        with (self.folder / "alone.log").open("w") as log:
            command = [str(PROGRAMS / "tributary-worker"), "--config", str(config)]
            worker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert worker.stdout is not None
            ready = worker.stdout.readline()
            self.assertTrue(ready.startswith("ready "), (self.folder / "alone.log").read_text())
            self.browser.open(f"http://{json.loads(ready[len('ready ') :])['admin']}/")
            self.assertEqual(self.browser.why(), "no job is known")
            self.assertEqual(self.column("Daemons", "Daemon"), ["worker alone"])
        finally:
            worker.terminate()
            worker.communicate(timeout=PATIENCE)


def take_pictures(into: pathlib.Path) -> None:
    """Takes pictures of a job that continued after a server had stood still and a worker was killed."""
    from PIL import Image

    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as ends:
        folder = pathlib.Path(name)
        cluster = Cluster(folder)
        ends.callback(cluster.close)
        browser = Browser(folder)
        ends.callback(browser.close)
        browser.resize(1080, 800)
        browser.open(f"http://{cluster.admin}/")
        time.sleep(15)
        with standing_still(cluster.daemons()["server 1"]["pid"]):
            assert eventually(lambda: "server 1" in browser.why())
        assert eventually(lambda: not cluster.job()["why_no_round"])
        os.kill(cluster.daemons()["worker 1"]["pid"], signal.SIGKILL)
        assert eventually(lambda: cluster.job()["view"] == 2)
        time.sleep(15)
        browser.picture(into / "page.png")
        terminal = folder / "top.html"
        terminal.write_text(
            '<meta charset="utf-8"><body style="margin:0;background:#15171a;color:#e4e6e8;font:12px/1.35 monospace">'
            f'<pre style="margin:12px;display:inline-block">{html.escape(top_in_a_terminal(folder / "run"))}</pre>'
        )
        browser.open(f"file://{terminal}")
        width, height = browser.run(
            'const pre = document.querySelector("pre"); return [pre.offsetWidth + 24, pre.offsetHeight + 24]'
        )
        browser.resize(width, height)
        browser.picture(into / "top.png")
    for picture in (into / "page.png", into / "top.png"):  # a third of the bytes
        Image.open(picture).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(picture, optimize=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("--pictures", type=pathlib.Path)
    given = parser.parse_args()
    SOURCE, PROGRAMS = given.source.resolve(), given.programs.resolve()
    if given.pictures:
        take_pictures(given.pictures)
    else:
        unittest.main(argv=sys.argv[:1])
