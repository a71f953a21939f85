"""`tributary doctor --config` and `--all`: what goes wrong in clusters is caused, and named.

    python3 tests/test_doctor.py SOURCE PROGRAMS

The cases of class Lab need root: they make network namespaces (`tributary lab up`), and are left out without.
"""

import contextlib
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Iterator
from typing import Any, ClassVar

from eventually import PATIENCE, eventually

LEVELS = ("ok", "note", "problem")

Checks = list[dict[str, str]]


class Daemon:
    """A daemon, once it is ready. `inside`: words before its command, that make its surroundings."""

    def __init__(self, folder: pathlib.Path, name: str, config: str, inside: tuple[str, ...] = ()) -> None:
        self.name = name
        self.config = folder / f"{name}.toml"
        self.config.write_text(config)
        self.log = folder / f"{name}.log"
        program = PROGRAMS / ("tributary-server" if "[server]" in config else "tributary-worker")
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*inside, str(program), "--config", str(self.config)], stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("ready "):
                self.ready = json.loads(line[len("ready ") :])
                return
        raise AssertionError(f"{name} has ended: {self.log.read_text()}")

    def stop(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=PATIENCE)


def doctor(*words: str, inside: tuple[str, ...] = ()) -> dict[str, Any]:
    """Returns the doctor's JSON, with its exit status."""
    command = [*inside, str(PROGRAMS / "tributary"), "doctor", "--json", *words]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout, f"{shlex.join(command)}: {done.returncode} {done.stderr}"
    said: dict[str, Any] = json.loads(done.stdout)
    said["status"] = done.returncode
    return said


def named(checks: Checks, name: str) -> dict[str, str]:
    """The worst line of that name."""
    lines = [check for check in checks if check["name"] == name]
    assert lines, f"no line is called {name}: {json.dumps(checks, indent=1)}"
    return max(lines, key=lambda check: LEVELS.index(check["level"]))


def all_of(said: dict[str, Any], daemon: str) -> dict[str, Any]:
    return next(one for one in said["daemons"] if one["name"] == daemon)


HOSTS = ("a", "b", "c", "d", "e")
LAB = """
[lab]
name = "{name}"
[network]
rate_mbit = 160
{hosts}
[job]
file = "{job}"
"""
SERVER = """
[server]
index = {index}
servers = 2
coordinator = "tcp://10.77.0.1:7070"
bind = "{bind}"
lanes = 1
[store]
path = "{store}"
io_mb_per_s = {budget}
[security]
insecure = true
"""
WORKER = """
[worker]
name = "{name}"
coordinator = "{coordinator}"
socket = "{socket}"
[limits]
heartbeat_ms = {heartbeat}
peer_timeout_ms = {patience}
[security]
insecure = true
"""


class Lab(unittest.TestCase):
    """Hosts a and b serve; c, d and e train. Much is wrong with e: its link, configuration, data, clock and limits."""

    folder: ClassVar[pathlib.Path]
    lab: ClassVar[str]
    servers: ClassVar[list[Daemon]]
    workers: ClassVar[list[Daemon]]

    @classmethod
    def setUpClass(cls) -> None:
        ends = contextlib.ExitStack()
        cls.addClassCleanup(ends.close)
        cls.folder = pathlib.Path(ends.enter_context(tempfile.TemporaryDirectory()))
        cls.lab = f"doctor-{os.getpid()}"
        hosts = "".join(
            f'[[hosts]]\nname = "{host}"\nruns = "{"server" if host in "ab" else "worker"}"\n'
            + ("rate_mbit = 20\n" if host == "e" else "")
            for host in HOSTS
        )
        lab = cls.folder / "lab.toml"
        lab.write_text(LAB.format(name=cls.lab, hosts=hosts, job=SOURCE / "configs" / "fashion-mnist.toml"))
        tool = str(PROGRAMS / "tributary")
        ends.callback(subprocess.run, [tool, "lab", "down", str(lab)], capture_output=True)
        subprocess.run([tool, "lab", "up", str(lab)], check=True, capture_output=True)
        (cls.folder / "data").mkdir()
        cls.servers, cls.workers = [], []
        token = cls.folder / "token"
        token.touch(mode=0o600)
        token.write_text("a-token-of-thirty-two-characters\n")
        for index, host in enumerate("ab"):
            config = cls.server(index, f"tcp://10.77.0.{index + 1}:*")
            if index == 0:
                config += f'admin_token = "{token}"\n'
            cls.servers.append(Daemon(cls.folder, f"server-{index}", config, cls.on(host)))
            ends.callback(lambda index=index: cls.servers[index].stop())
        faketime = next(pathlib.Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
        environment = f"LD_PRELOAD={faketime} FAKETIME=-1h FAKETIME_DONT_FAKE_MONOTONIC=1"
        script = [
            f"mount -t tmpfs none {cls.folder}/data",  # file systems of its own
            "mount -t tmpfs -o size=64m none /dev/shm",
            "ulimit -n 512",
            f'exec env {environment} "$@"',
        ]
        without = ("sh", "-c", " && ".join(script), "sh")
        (cls.folder / "data" / "set").mkdir()
        for host in "cde":
            inside = cls.on(host) + (without if host == "e" else ())
            cls.workers.append(Daemon(cls.folder, host, cls.worker(host, slack=2 if host == "e" else 1), inside))
            ends.callback(cls.workers[-1].stop)

    @classmethod
    def on(cls, host: str) -> tuple[str, ...]:
        return ("ip", "netns", "exec", f"tributary-lab.{cls.lab}.{host}")

    @classmethod
    def server(cls, index: int, bind: str) -> str:
        # No disk is as fast as what server 1 is given.
        budget = 200 if index == 0 else 1_000_000
        return SERVER.format(index=index, bind=bind, store=cls.folder / f"store-{index}", budget=budget)

    @classmethod
    def worker(cls, name: str, coordinator: str = "tcp://10.77.0.1:7070", slack: int = 1) -> str:
        socket = cls.folder / f"{name}.sock"
        limits = {"heartbeat": 800 + 200 * slack, "patience": 10000 if slack == 1 else 4500}
        return WORKER.format(name=name, coordinator=coordinator, socket=socket, **limits)

    def all(self, *words: str) -> dict[str, Any]:
        admin = [
            "--all",
            "--coordinator-admin",
            self.servers[0].ready["admin"],
            "--token",
            str(self.folder / "token"),
        ]
        return doctor(*admin, *words, inside=self.on("a"))

    def config(self, text: str, host: str = "c") -> dict[str, Any]:
        file = self.folder / "tried.toml"
        file.write_text(text)
        return doctor("--config", str(file), inside=self.on(host))

    def test_a_cluster(self) -> None:
        said = self.all("--path", str(self.folder / "data" / "set"))
        self.assertEqual(
            {one["name"] for one in said["daemons"]}, {"server 0", "server 1", "worker c", "worker d", "worker e"}
        )
        self.assertEqual(named(said["checks"], "daemons")["found"], "2 of 2 servers, 3 workers")
        clock = named(said["checks"], "clock of worker e")
        self.assertEqual(clock["level"], "problem")
        self.assertRegex(clock["found"], "^3[56][0-9][0-9] s behind the coordinator's")
        # Another configuration on one node.
        beats = named(said["checks"], "limits.heartbeat_ms")
        self.assertEqual(beats["found"], '"1000" on worker c and worker d; "1200" on worker e')
        self.assertNotIn("program", [check["name"] for check in said["checks"]])
        # A path that is not there on one node.
        for host in "cd":
            self.assertEqual(named(all_of(said, f"worker {host}")["checks"], "path")["level"], "ok")
        lost = named(all_of(said, "worker e")["checks"], "path")
        self.assertEqual(
            (lost["level"], lost["found"]), ("problem", f"{self.folder}/data/set: No such file or directory")
        )
        # The limits of its process, and its longest silence.
        for name, found in (
            ("open files", "at most 512"),
            ("/dev/shm", "64.0 MiB free of 64.0 MiB"),
            ("time-outs", "peers that are not heard for 4500 ms are lost"),
        ):
            check = named(all_of(said, "worker e")["checks"], name)
            self.assertEqual(check["level"], "note")
            self.assertIn(found, check["found"])
            self.assertNotIn(found, named(all_of(said, "worker c")["checks"], name)["found"])
        for index in range(2):
            way = named(all_of(said, "worker c")["checks"], f"to server {index}")
            self.assertIn(f"1 lane reached at tcp://10.77.0.{index + 1}:", way["found"])
        self.assertEqual(said["status"], 1)

    def test_lanes_that_are_told_to_be_at_everybodys_loopback(self) -> None:
        def again(bind: str) -> None:
            self.servers[1].stop()
            self.servers[1] = Daemon(self.folder, "server-1", self.server(1, bind), self.on("b"))

        self.addCleanup(again, "tcp://10.77.0.2:*")
        again("tcp://0.0.0.0:*")
        said = self.all()
        self.assertIn("127.0.0.1, which is themselves", named(all_of(said, "server 1")["checks"], "lanes")["found"])
        way = named(all_of(said, "worker c")["checks"], "to server 1")
        self.assertIn("which is this machine, and it runs on another", way["found"])
        self.assertIn("set [server] bind (or advertise)", way["advice"])

    def status(self) -> dict[str, Any]:
        page = f"http://{self.servers[0].ready['admin']}/status"
        command = [
            *self.on("a"),
            sys.executable,
            "-c",
            "import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode())",
        ]
        told: dict[str, Any] = json.loads(subprocess.run([*command, page], capture_output=True, check=True).stdout)
        return told

    @contextlib.contextmanager
    def training(self, hosts: str, name: str = "fashion-mnist") -> Iterator[None]:
        """The ranks on these hosts of a job that has three."""
        job = str(SOURCE / "configs" / "fashion-mnist.toml")
        trainers = []
        for rank, (host, worker) in enumerate(zip("cde", self.workers, strict=True)):
            command = [*self.on(host), str(PROGRAMS / "tributary-train"), "--job", job, "--quiet"]
            command += ["--worker", worker.ready["socket"], "--rank", str(rank), "--world-size", "3"]
            command += ["--local-rank", "0", "--local-world-size", "1", "--node-rank", str(rank)]
            command += ["--set", "train.global_batch=192", "--set", f"job.name={name}"]
            if host not in hosts:
                continue
            with (self.folder / f"trainer-{rank}.log").open("w") as log:
                trainers.append(subprocess.Popen(command, stdout=log, stderr=log))
        try:
            yield
        finally:
            for trainer in trainers:
                trainer.terminate()
            for trainer in trainers:
                trainer.wait(PATIENCE)

    def test_a_rank_that_is_missing_is_named_with_its_node(self) -> None:
        with self.training("cd", "missing"):

            def said() -> dict[str, str]:
                lines = [check for check in self.all()["checks"] if check["name"] == "job missing"]
                return lines[0] if lines and lines[0]["found"] == "it waits for node 2" else {}

            self.assertEqual(eventually(said)["level"], "problem")

    def test_a_port_whose_packets_are_dropped(self) -> None:
        # As a firewall's: a listener whose queue is full, and that takes nobody.
        listener = "import socket as s, time; l = s.socket(); l.bind(('10.77.0.2', 7777)); l.listen(0); "
        listener += "c = s.create_connection(('10.77.0.2', 7777)); print('full', flush=True); time.sleep(600)"
        with subprocess.Popen(
            [*self.on("b"), sys.executable, "-c", listener], stdout=subprocess.PIPE, text=True
        ) as full:
            try:
                assert full.stdout is not None
                self.assertEqual(full.stdout.readline(), "full\n")
                said = named(self.config(self.worker("x", "tcp://10.77.0.2:7777"))["checks"], "reached")
                self.assertIn("nothing has answered for 3 s", said["found"])
                self.assertIn("firewall", said["advice"])
            finally:
                full.kill()

    def test_a_link_that_is_slower_than_stated_is_named(self) -> None:
        with self.training("cde"):

            def jobs() -> list[dict[str, Any]]:
                return list(self.status()["coordinator"]["jobs"])

            self.assertTrue(eventually(lambda: jobs() and jobs()[0]["max_version"] > 0))
            began = time.monotonic()
            lag = "takes "

            def named_as_slow() -> str:
                events = self.status()["coordinator"]["events"]
                return next((one["text"] for one in events if "node 2" in one["text"] and lag in one["text"]), "")

            said = eventually(named_as_slow)
            took = time.monotonic() - began
            self.assertIn("most of it in phase network", said)
            self.assertIn("its link is slower than its [worker] bandwidth says", said)
            print(f"the slow link is named after {took:.1f} s: {said}")

    def test_links_and_disks_are_measured_and_the_slow_one_is_named(self) -> None:
        said = self.all("--measure")
        slow = named(said["checks"], "worker e to server 0")
        self.assertEqual(slow["level"], "problem")
        self.assertIn("the middle one of all links has", slow["found"])
        rates = {one["name"]: {rate["server"]: rate["bytes_per_s"] for rate in one["rates"]} for one in said["daemons"]}
        self.assertLess(rates["worker e"][0], 20e6 / 8)
        for host in "cd":
            # 160 Mbit/s, less what frames take.
            self.assertGreater(rates[f"worker {host}"][0], 0.6 * 160e6 / 8)
            self.assertLess(rates[f"worker {host}"][0], 160e6 / 8)
            self.assertNotIn(f"worker {host} to server 0", [check["name"] for check in said["checks"]])
        for server in ("server 0", "server 1"):
            disk = named(all_of(said, server)["checks"], "disk")
            self.assertIn("of durable writes in", disk["found"])
        self.assertEqual(disk["level"], "note")
        self.assertIn("[store] io_mb_per_s is 1000000", disk["found"])

    def test_a_wrong_address_of_the_coordinator_is_named_with_its_cause(self) -> None:
        nowhere = named(self.config(self.worker("x", "tcp://10.77.0.1:7071"))["checks"], "reached")
        self.assertIn("tcp://10.77.0.1:7071: nobody listens there", nowhere["found"])
        outside = named(self.config(self.worker("x", "tcp://203.0.113.7:7070"))["checks"], "reached")
        self.assertIn("no way leads there", outside["found"])
        unknown = named(self.config(self.worker("x", "tcp://no-such-host.invalid:7070"))["checks"], "reached")
        self.assertIn("the name no-such-host.invalid is not known here", unknown["found"])
        gone = named(self.config(self.worker("x", "tcp://10.77.0.99:7070"))["checks"], "reached")
        self.assertRegex(gone["found"], "nothing has answered for 3 s|no way leads there")
        lane = named(self.config(self.worker("x", self.servers[0].ready["lanes"][0]))["checks"], "reached")
        self.assertIn("is a server's lane, and no coordinator", lane["found"])
        admin = self.servers[0].ready["admin"]
        http = named(doctor_on(self, self.worker("x", f"tcp://{admin}"), "a"), "reached")
        self.assertIn("is another program", http["found"])
        for line in (nowhere, outside, unknown, gone, lane, http):
            self.assertEqual(line["level"], "problem")
            self.assertTrue(line["advice"])

    def test_a_sound_configuration(self) -> None:
        said = self.config(self.worker("x"), "d")
        self.assertIn("tcp://10.77.0.1:7070, from 10.77.0.4", named(said["checks"], "reached")["found"])
        self.assertEqual(named(said["checks"], "clock")["level"], "ok")
        self.assertEqual(named(said["checks"], "version")["level"], "ok")
        self.assertEqual(named(said["checks"], "daemons")["found"], "2 of 2 servers are there, 3 workers")
        self.assertEqual(named(said["checks"], "to server 0")["level"], "ok")

    def test_a_wrong_interface_and_another_number_of_servers(self) -> None:
        config = self.server(1, "tcp://10.77.0.3:7100")
        said = self.config(config.replace("servers = 2", "servers = 3"), "d")
        bind = named(said["checks"], "[server] bind")
        self.assertIn("no address of this machine, which has 10.77.0.4 (eth0)", bind["found"])
        self.assertIn("3; the coordinator waits for 2", named(said["checks"], "servers")["found"])

    def test_orders_need_the_token_and_sense(self) -> None:
        admin = ("--all", "--coordinator-admin", self.servers[0].ready["admin"])
        for words, why in (
            ((), "token"),
            (("--token", str(self.folder / "token"), "--path", "data"), "'data' is no absolute path"),
        ):
            command = [*self.on("a"), str(PROGRAMS / "tributary"), "doctor", *admin, *words]
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn(why, done.stderr)


def doctor_on(case: Lab, config: str, host: str) -> Checks:
    return case.config(config, host)["checks"]


class Secured(unittest.TestCase):
    """A cluster with keys on this machine, and without a job: only a diagnosis lets workers in."""

    @contextlib.contextmanager
    def cluster(self, payload: str) -> Iterator[tuple[pathlib.Path, list[Daemon]]]:
        with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as ends:
            folder = pathlib.Path(name)
            keys = folder / "keys"
            tool = [str(PROGRAMS / "tributary"), "keys"]
            subprocess.run([*tool, "init", str(keys)], check=True, capture_output=True)
            for key, role in (("server-1", "server"), ("w0", "worker"), ("w1", "worker")):
                new = [*tool, "new", key, "--role", role, "--dir", str(keys)]
                subprocess.run(new, check=True, capture_output=True)
            daemons: list[Daemon] = []

            def start(name: str, config: str, security: str) -> None:
                daemons.append(Daemon(folder, name, f"{config}[security]\n{security}"))
                ends.callback(daemons[-1].stop)

            server = '[server]\nindex = {}\nservers = 2\nlanes = 2\ncoordinator = "ipc://{}/control"\n'
            plain = f'payload = "{payload}"\n'
            own = f'keys = "{keys}/coordinator.key"\nauthorized = "{keys}/authorized"\n'
            start("server-0", server.format(0, folder), f'{own}admin_token = "{keys}/admin.token"\n{plain}')
            others = f'coordinator_key = "{keys}/coordinator.pub"\n'
            start("server-1", server.format(1, folder), f'{others}keys = "{keys}/server-1.key"\n{plain}')
            for worker in ("w0", "w1"):
                config = f'[worker]\ncoordinator = "ipc://{folder}/control"\nsocket = "{folder}/{worker}.sock"\n'
                start(worker, config, f'{others}keys = "{keys}/{worker}.key"\n')
            yield folder, daemons

    def test_workers_are_let_in_to_measure(self) -> None:
        for payload in ("encrypt", "plain"):
            with self.subTest(payload), self.cluster(payload) as (folder, daemons):
                admin = (
                    "--all",
                    "--coordinator-admin",
                    daemons[0].ready["admin"],
                    "--token",
                    f"{folder}/keys/admin.token",
                )
                for _ in range(2):  # tokens are good once: another diagnosis has others
                    said = doctor(*admin, "--measure")
                    for name in ("worker w0", "worker w1"):
                        found = all_of(said, name)
                        self.assertEqual([rate["server"] for rate in found["rates"]], [0, 1], found["checks"])
                        self.assertTrue(all(rate["local"] for rate in found["rates"]))
                    self.assertIn("2 of 2 servers, 2 workers", named(said["checks"], "daemons")["found"])

    def test_a_key_that_is_not_let_in_and_a_coordinator_that_is_another(self) -> None:
        with self.cluster("encrypt") as (folder, _):
            other = folder / "other"
            tool = [str(PROGRAMS / "tributary"), "keys"]
            subprocess.run([*tool, "init", str(other)], check=True, capture_output=True)
            subprocess.run(
                [*tool, "new", "w", "--role", "worker", "--dir", str(other)], check=True, capture_output=True
            )
            config = folder / "w.toml"
            cases = ((folder / "keys", "does not let this daemon's key in"), (other, "does not show the key"))
            for coordinator, why in cases:
                config.write_text(
                    f'[worker]\nname = "w"\ncoordinator = "ipc://{folder}/control"\nsocket = "{folder}/w.sock"\n'
                    f'[security]\nkeys = "{other}/w.key"\ncoordinator_key = "{coordinator}/coordinator.pub"\n'
                )
                said = named(doctor("--config", str(config))["checks"], "reached")
                self.assertEqual(said["level"], "problem")
                self.assertIn(why, said["found"])


class Files(unittest.TestCase):
    def test_what_is_no_configuration_is_a_problem_with_its_line(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            file = pathlib.Path(name) / "x.toml"
            for text, why in (
                ("", "neither [server] nor [worker]"),
                ("[server]\n[worker]\n", "both [server] and [worker]"),
                ("[worker]\nlains = 1\n", "x.toml:2"),
                ("[worker\n", "x.toml"),
            ):
                file.write_text(text)
                said = doctor("--config", str(file))
                self.assertIn(why, named(said["checks"], "file")["found"])
                self.assertEqual(said["status"], 1)
            self.assertEqual(
                named(doctor("--path", name, "--path", f"{name}/none")["checks"], "path")["level"], "problem"
            )
            self.assertIn("no configuration file", named(doctor("--config", f"{name}/none")["checks"], "file")["found"])


if __name__ == "__main__":
    SOURCE, PROGRAMS = (pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve())
    if os.geteuid() != 0 or not shutil.which("tc") or not shutil.which("ip"):
        print("no lab here: its cases are left out (they need root, ip and tc)")
        del Lab
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
