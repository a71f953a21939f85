"""Every command of README.md does what it says, in the order in which they stand after `make demo`.

    test_readme.py ROOT BUILD [--keep]      ROOT: of the repository; BUILD: a built tree

A newcomer's checkout is a copy of what git has, with the programs that `make demo` builds and no others, and with a
Python without torch. One shell takes the commands that the demo prints at its end, and then README's. With --keep the
copy stays.
"""

import os
import pathlib
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

from eventually import PATIENCE, eventually

ROOT, BUILD = (pathlib.Path(word).absolute() for word in sys.argv[1:3])
KEEP = "--keep" in sys.argv[3:]

CLEAN_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
KEPT = (
    r"HOME|LANG|LOGNAME|SHELL|TERM|TMPDIR|USER|PIP_.*|.*_proxy|SSL_CERT_FILE|REQUESTS_CA_BUNDLE"  # of the environment
)
LONGEST = 150.0  # seconds of a command, on a busy machine
FAILS_WITHIN = 30.0  # seconds
# Folders that are never a checkout's own, where there is no git to ask.
MADE = {".git", ".cache", "build", "runs", "__pycache__", ".ruff_cache", ".mypy_cache"}


class Rule(NamedTuple):
    """For commands that begin so; the first that fits counts. A command that none fits is run as it is."""

    begins: str
    instead: tuple[str, str] = ("", "")  # what is replaced, and by what
    more: str = ""  # arguments that make it short
    statuses: tuple[int, ...] = (0,)
    not_run: str = ""  # why
    needs_torch: bool = False  # fails without, with the cure
    installs_torch: bool = False
    while_training: bool = False  # and in another terminal


SHORT = " --set train.max_rounds=400"
LONG = " --set train.max_rounds=0 --set train.epochs=1000"
RULES = (
    Rule("make ", not_run="builds for minutes; the demo's training is run as the Makefile has it"),
    # torch_environment.sh says why just this one.
    Rule("python3 -m venv", instead=("install torch ", "install torch==2.13.0 "), installs_torch=True),
    Rule("tributary run", more=" --bytes 65536 --epochs 1", needs_torch=True),
    Rule("tributary up", more=SHORT),
    Rule("tributary-train", more=SHORT),
    Rule("tributary chaos", instead=("--kills 50", "--kills 2")),
    Rule("build/release/bin/tributary status", while_training=True),
    Rule("build/release/bin/tributary doctor --all", statuses=(0, 1), while_training=True),
    Rule("tributary doctor --config", statuses=(1,)),  # README says why
    Rule("tributary doctor", statuses=(0, 1)),  # 1: this machine has a problem
)


def rule_of(command: str) -> Rule:
    return next((rule for rule in RULES if command.startswith(rule.begins)), Rule(command))


def commands_of(readme: str) -> list[str]:
    """Returns the lines of its `sh` blocks, without comments; a line that ends in a backslash continues in the next."""
    commands: list[str] = []
    for block in re.findall(r"^```sh\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            command = re.sub(r"(^|\s+)#.*$", "", line).strip()
            if command:
                commands.append(command)
    return commands


def demo() -> tuple[list[str], str]:
    """Returns the targets that `make demo` builds, and the command that trains."""
    recipe = re.search(r"^demo:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe
    targets = re.search(r"--target (.*)$", recipe[1], re.MULTILINE)
    trains = re.search(r"^\t(build/release/bin/tributary up .*)$", recipe[1], re.MULTILINE)
    assert targets and trains, recipe[1]
    return targets[1].split(), trains[1]


def next_steps(checkout: pathlib.Path) -> list[str]:
    said = subprocess.run([checkout / "scripts/next_steps.sh"], capture_output=True, text=True, check=True).stdout
    return re.findall(r"^  (\S.*)$", said, re.MULTILINE)


def own_files() -> Iterator[str]:
    """Yields the files of ROOT that git tracks or would add; without git, all files that no build made."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    if (ROOT / ".git").exists() and shutil.which("git"):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            yield from sorted(set(filter(None, done.stdout.split("\0"))))
            return
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in MADE]
        yield from (os.path.relpath(pathlib.Path(folder, name), ROOT) for name in files)


def make_checkout(checkout: pathlib.Path) -> None:
    for name in own_files():
        if os.path.lexists(ROOT / name):  # git lists what was removed
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, checkout / name, follow_symlinks=False)
    release = checkout / "build/release"
    for target in demo()[0]:
        name = "lib/libtributary.so.1" if target == "tributary_shared" else f"bin/{target}"
        (release / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(BUILD / name, release / name)


def has_torch(python: str) -> bool:
    # -I: PYTHONPATH is none of a newcomer's.
    return subprocess.run([python, "-Ic", "import torch"], capture_output=True, check=False).returncode == 0


def newcomers_environment(folder: pathlib.Path) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if re.fullmatch(KEPT, name, re.IGNORECASE)}
    python = shutil.which("python3", path=CLEAN_PATH)
    path = CLEAN_PATH
    if not python or has_torch(python):
        bare = folder / "python"
        subprocess.run([python or sys.executable, "-m", "venv", "--without-pip", bare], check=True)
        path = f"{bare}/bin:{path}"
    return {**environment, "PATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


class Done(NamedTuple):
    command: str
    status: int
    text: str
    seconds: float

    def __str__(self) -> str:
        end = "\n".join(self.text.splitlines()[-40:])
        return f"{self.command}\nended with {self.status} after {self.seconds:.1f} s:\n{end}"


class Terminal:
    """A bash: what a command exports holds for the next one."""

    def __init__(self, folder: pathlib.Path, environment: dict[str, str]) -> None:
        self.statuses, into = os.pipe()
        self.into = into
        self.bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            stdin=subprocess.PIPE,
            cwd=folder,
            env=environment,
            pass_fds=(into,),
            start_new_session=True,
            text=True,
        )
        os.close(into)

    def run(self, command: str, patience: float = LONGEST) -> Done:
        with tempfile.NamedTemporaryFile("r", suffix=".log", errors="replace") as log:
            began = time.monotonic()
            assert self.bash.stdin is not None
            self.bash.stdin.write(
                f"eval {shlex.quote(command)} </dev/null >{shlex.quote(log.name)} 2>&1 {self.into}>&-\n"
                f"echo $? >&{self.into}\n"
            )
            self.bash.stdin.flush()
            told = select.select([self.statuses], [], [], patience)[0]
            status = os.read(self.statuses, 64).decode() if told else ""
            done = Done(command, int(status or -1), log.read(), time.monotonic() - began)
        if not status:
            self.kill()
            raise AssertionError(f"no end of {done}")
        return done

    def kill(self) -> None:
        os.killpg(self.bash.pid, signal.SIGKILL)

    def close(self) -> None:
        assert self.bash.stdin is not None
        self.bash.stdin.close()
        self.bash.wait()
        os.close(self.statuses)


def round_in(text: str, pattern: str) -> int:
    found = re.search(pattern, text)
    assert found, text
    return int(found[1])


class Walk(unittest.TestCase):
    folder: ClassVar[pathlib.Path]
    checkout: ClassVar[pathlib.Path]
    environment: ClassVar[dict[str, str]]
    readme: ClassVar[list[str]]

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="readme-"))
        if KEEP:
            print(f"the checkout is {cls.folder}/tributary")
        else:
            cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.checkout = cls.folder / "tributary"
        make_checkout(cls.checkout)
        cls.environment = newcomers_environment(cls.folder)
        cls.readme = commands_of((cls.checkout / "README.md").read_text())

    def terminal(self) -> Terminal:
        terminal = Terminal(self.checkout, self.environment)
        self.addCleanup(terminal.close)
        return terminal

    def do(self, terminal: Terminal, command: str, rule: Rule) -> Done:
        self.assertIn(rule.instead[0], command)
        done = terminal.run(command.replace(*rule.instead) + rule.more)
        print(f"{done.seconds:6.1f} s  {done.command}", flush=True)
        self.assertIn(done.status, rule.statuses, str(done))
        return done

    def fails_without_torch(self, terminal: Terminal, command: str) -> None:
        done = terminal.run(command, FAILS_WITHIN)
        print(f"{done.seconds:6.1f} s  {command}: fails without torch", flush=True)
        self.assertEqual(done.status, 1, str(done))
        self.assertRegex(
            done.text, r"needs torch 2\.1 or newer, and this Python \(\S+, 3\S+\) has none: No module named", done
        )
        self.assertRegex(done.text, r"make a virtual environment first: `python3 -m venv .*pip install torch", done)
        self.assertEqual(done.text.count("No module named 'torch'"), 1, str(done))
        self.assertIn("it is not started again", done.text)
        self.assertNotIn("it is started again", done.text)

    def demo_trains(self) -> None:
        """As long as for everybody: README says what comes out."""
        done = self.do(self.terminal(), demo()[1], Rule(""))
        accuracy = re.search(r"^ +test +accuracy (0\.\d+)$", done.text, re.MULTILINE)
        self.assertTrue(accuracy and 0.88 < float(accuracy[1]) < 0.90, str(done))

    def walk(self, commands: list[str], *, with_torch: bool) -> None:
        terminal = self.terminal()
        up = ""  # the last one
        digests: dict[str, str] = {}  # by program
        for command in commands:
            rule = rule_of(command)
            if rule.not_run or (rule.installs_torch and not with_torch):
                print(f"  not run  {command}: {rule.not_run or 'without torch'}", flush=True)
            elif rule.needs_torch and not with_torch:
                self.fails_without_torch(terminal, command)
            elif rule.while_training:
                self.beside_training(up, command, rule)
            else:
                done = self.do(terminal, command, rule)
                if command.startswith("tributary up"):
                    up = command
                digest = re.search(r"\bdigest\s+([0-9a-f]{32})\b", done.text)
                if digest and rule.more.startswith(SHORT):
                    digests[command.split()[0]] = digest[1]
                if rule.needs_torch:
                    self.assertRegex(done.text, r"epoch 0: validation loss \d", done)
                    self.assertRegex(done.text, r"node 0 +(0\.[1-9]|[1-9])\S* MB pushed", done)  # nothing was complete
        self.assertEqual(len(digests), 2, digests)
        self.assertEqual(len(set(digests.values())), 1, digests)

    def beside_training(self, up: str, command: str, rule: Rule) -> None:
        """In a terminal without the first one's exports. Then Ctrl-C, and on from there, as README says."""
        self.assertTrue(up, f"no job was trained before: {command}")
        words = shlex.split(up.replace(" --fresh", "") + LONG)
        words[0] = str(self.checkout / "build/release/bin" / words[0])
        log = self.folder / "training.log"

        def training(*more: str) -> "subprocess.Popen[bytes]":
            with log.open("wb") as out:
                return subprocess.Popen(
                    [*words, *more], cwd=self.checkout, env=self.environment, stdout=out, stderr=subprocess.STDOUT
                )

        def stop(process: "subprocess.Popen[bytes]") -> str:
            process.send_signal(signal.SIGINT)
            status = process.wait(PATIENCE)
            self.assertEqual(status, 75, log.read_text())
            return log.read_text()

        first = training("--fresh")
        try:
            other = self.terminal()

            def answer() -> Done | None:
                self.assertIsNone(first.poll(), log.read_text())
                done = other.run(command)
                return done if done.status in rule.statuses and "fashion-mnist" in done.text else None

            done = eventually(answer)
            self.assertTrue(done, f"{command} has no answer while a job trains")
            print(f"{done.seconds:6.1f} s  {command}, while a job trains", flush=True)
            self.assertTrue(eventually(lambda: re.search(r"round \d+/", log.read_text())), log.read_text())
            stopped = round_in(stop(first), r"stopped after round (\d+)")
            self.assertGreater(stopped, 0)
            first = training()
            self.assertTrue(eventually(lambda: re.search(r"round \d+/", log.read_text())), log.read_text())
            self.assertEqual(round_in(stop(first), r"resumed after round (\d+)"), stopped)
        finally:
            if first.poll() is None:
                first.terminate()
                first.wait(PATIENCE)

    def test_every_rule_has_a_command(self) -> None:
        used = {rule_of(command) for command in self.readme}
        self.assertEqual([rule.begins for rule in RULES if rule not in used], [], "drop these rules")
        self.assertGreater(len(self.readme), 10)

    def test_without_torch(self) -> None:
        self.demo_trains()
        self.walk(self.readme, with_torch=False)

    def test_with_torch(self) -> None:
        self.walk([*next_steps(self.checkout), *self.readme], with_torch=True)

    def test_what_measures_is_built_apart(self) -> None:
        done = self.terminal().run("build/release/bin/tributary plan")
        self.assertNotEqual(done.status, 0)
        self.assertIn("a checkout builds it with 'cmake --build --preset release --target tributary-bench'", done.text)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
