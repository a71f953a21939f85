"""Manual pages and completion have what --help has, pages are sound, and the shells complete.

test_command_lines.py BIN      the folder of the programs
"""

import functools
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from typing import ClassVar, NamedTuple

BIN = pathlib.Path(sys.argv[1]).absolute()
PROGRAMS = {"tributary": 1, "tributary-server": 8, "tributary-worker": 8, "tributary-train": 1}
PATIENCE_S = 60.0  # of a shell that starts on a busy machine
Path = tuple[str, ...]  # of a command: its program's name, and what leads to it


def run(*words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "PATH": f"{BIN}:{os.environ['PATH']}", **variables}
    return subprocess.run(words, capture_output=True, text=True, check=False, env=environment, timeout=120)


class Help(NamedTuple):
    options: list[str]
    words: dict[str, list[str]]  # of options that take one of them
    below: list[str]


@functools.cache
def help_of(path: Path) -> Help:
    """Returns the output of --help; where options stand, only options begin with a dash."""
    done = run(*path, "--help")
    assert done.returncode == 0, done.stderr
    found = Help([], {}, [])
    heading = ""
    for line in done.stdout.splitlines():
        entry = re.match(r" {2,4}(\S+)(.*)", line)
        if re.fullmatch(r" *[A-Z]\w+:", line):
            heading = line.strip()
        elif not line.strip().startswith("[") and not line.startswith(" ") and line:
            heading = ""
        elif heading == "Options:" and entry and entry[1].startswith("-"):
            names = re.sub(r"{\w+}", "", entry[1]).split(",")
            found.options.extend(names)
            words = re.search(r"TEXT:{([^}]*)}", entry[2])
            if words:
                found.words[names[0]] = words[1].split(",")
        elif heading == "Subcommands:" and entry and not line.startswith("   "):
            found.below.append(entry[1])
    return found


def commands(path: Path) -> list[Path]:
    return [path, *(below for name in help_of(path).below for below in commands((*path, name)))]


COMMANDS = [command for program in PROGRAMS for command in commands((program,))]


def offered(command: Path, *words: str) -> tuple[list[str], bool]:
    """Returns the candidates for the last word, and whether a path may stand there."""
    done = run(command[0], "--complete", *command[1:], *words)
    assert done.returncode in (0, 1) and not done.stderr, done
    return [line.split("\t")[0] for line in done.stdout.splitlines()], done.returncode == 1


class Manual(unittest.TestCase):
    pages: ClassVar[dict[str, str]] = {}

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = pathlib.Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        for program in PROGRAMS:
            done = run(program, "--manual", str(cls.folder))
            assert done.returncode == 0 and not done.stdout + done.stderr, done
        cls.pages = {page.name: page.read_text(encoding="utf-8") for page in sorted(cls.folder.iterdir())}

    def test_a_page_for_each_program_and_each_subcommand(self) -> None:
        wanted = {f"{'-'.join(command)}.{PROGRAMS[command[0]]}" for command in COMMANDS if len(command) < 3}
        self.assertEqual(set(self.pages), wanted)

    def test_sound(self) -> None:
        for name in self.pages:
            page = str(self.folder / name)
            done = run("man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", page, MANWIDTH="80", MANROFFSEQ="")
            self.assertEqual((done.returncode, done.stderr), (0, ""), name)
            # As it is indexed: a name and what it is.
            done = run("lexgrog", page)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_wrong_page_is_found(self) -> None:
        page = self.folder.parent / f"{self.folder.name}.wrong"
        self.addCleanup(page.unlink)
        page.write_text('.TH WRONG 1 "" "" ""\n.SH NAME\nwrong \\- a page\n.NOSUCH macro\n')
        done = run("man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", str(page))
        self.assertIn("NOSUCH", done.stderr)

    def test_every_option_of_help(self) -> None:
        for command in COMMANDS:
            page = self.pages[f"{'-'.join(command[:2])}.{PROGRAMS[command[0]]}"].replace("\\-", "-").replace("\\:", "")
            if len(command) > 2:
                self.assertIn(f"\n.SS {' '.join(command)}\n", page)
                page = page.split(f"\n.SS {' '.join(command)}\n", 1)[1].split("\n.SS tributary ")[0]
            said = help_of(command)
            for option in said.options:
                self.assertRegex(page, rf"\n\.TP\n.*\\fB{option}\\fR", command)
            for words in said.words.values():
                self.assertIn("{" + ",".join(words) + "}", page, command)

    def test_text_comes_out_as_it_is(self) -> None:
        page = str(self.folder / "tributary-up.1")
        shown = run("man", "-E", "UTF-8", "-l", page, MANWIDTH="200")
        self.assertIn("tributary-up - train a job on a whole cluster", shown.stdout)
        self.assertRegex(shown.stdout, r"EXIT STATUS\n +0 trained to the end; 75 stopped")
        self.assertRegex(shown.stdout, r"EXAMPLES\n +tributary up configs/fashion-mnist.toml --servers 2")

    def test_a_folder_that_is_not_there(self) -> None:
        done = run("tributary", "--manual", str(self.folder / "gone"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("cannot write", done.stderr)


class Completion(unittest.TestCase):
    def test_every_option_of_help(self) -> None:
        for command in COMMANDS:
            said = help_of(command)
            found, paths = offered(command, "-")
            self.assertEqual((sorted(found), paths), (sorted(said.options), False), command)
            for option, words in said.words.items():
                self.assertEqual(offered(command, option, ""), (words, False), (command, option))
                self.assertEqual(offered(command, f"{option}="), ([f"{option}={word}" for word in words], False))

    def test_every_subcommand(self) -> None:
        for command in COMMANDS:
            below = help_of(command).below
            if below:
                self.assertEqual(offered(command, ""), (below, False), command)
                self.assertEqual(offered(command, below[0][:-1])[0][0], below[0])

    def test_paths(self) -> None:
        for words in (
            ("tributary", "up", ""),
            ("tributary", "up", "--base-dir", ""),
            ("tributary", "up", "job.toml", "--base-dir="),
            ("tributary", "checkpoint", "export", ""),
            ("tributary", "checkpoint", "export", "checkpoint", ""),
            ("tributary", "keys", "init", ""),
            ("tributary-server", "--config", ""),
            ("tributary-train", "--worker", ""),
            ("tributary", "run", "--nodes", "2", "--", ""),
            ("tributary", "run", "python", "--servers"),
        ):
            with self.subTest(words):
                self.assertEqual(offered(words[:1], *words[1:]), ([], True))

    def test_no_paths(self) -> None:
        for words in (
            ("tributary", "up", "--nodes", ""),
            ("tributary", "job", "remove", "--coordinator-admin", ""),
            ("tributary", "nothing", "-"),
            ("tributary", "up", "--nothing="),
        ):
            with self.subTest(words):
                self.assertFalse(offered(words[:1], *words[1:])[1])
        # Nothing else may come: options.
        self.assertIn("--json", offered(("tributary",), "up", "job.toml", "")[0])
        self.assertIn("--json", offered(("tributary",), "doctor", "")[0])

    def test_values_of_their_own(self) -> None:
        """An option's value is no subcommand, whatever it is called; a flag has none."""
        self.assertEqual(
            offered(("tributary",), "checkpoint", "save", "--dir", "list", "--comm"), (["--committed"], False)
        )
        self.assertEqual(offered(("tributary",), "up", "--fresh", "--tr"), (["--transport"], False))
        self.assertEqual(offered(("tributary",), "completion", "")[0], ["bash", "zsh", "fish"])
        self.assertIn("--secure=plain", offered(("tributary",), "up", "--secure=")[0])


# The words typed, the shells' completions, and whether they complete paths, too.
TYPED: list[tuple[list[str], list[str], bool]] = [
    (["tributary", "che"], ["checkpoint"], False),
    (["tributary", "checkpoint", "re"], ["restore"], False),
    (["tributary", "up", "--ranks"], ["--ranks-per-node"], False),
    (["tributary", "up", "job.toml", "--transport", ""], ["shm", "tcp", "ipc"], False),
    (["tributary", "bench", "pushpull", "--optimizer", "ada"], ["adam", "adamw", "adagrad"], False),
    (["tributary", "up", ""], [], True),
    (["tributary-server", "--ch"], ["--check-config"], False),
    (["tributary-train", "--job", ""], [], True),
]


def typed_into(argv: list[str], lines: list[str], keys: str, wanted: str, folder: str) -> str:
    """Returns a terminal's output, up to `wanted`, after its shell has read the lines and then the keys."""
    process, terminal = pty.fork()
    if process == 0:
        os.environ.update(PATH=f"{BIN}:{os.environ['PATH']}", TERM="dumb", LC_ALL="C.UTF-8")
        os.chdir(folder)
        os.execvp(argv[0], argv)
    shown = ""
    try:
        # A shell that has come to the line's end prints what the line does not contain.
        for line, until in [*((f"{line}; echo REA''DY", "READY") for line in lines), (keys, wanted)]:
            os.write(terminal, (line if line is keys else line + "\n").encode())
            shown, deadline = "", time.monotonic() + PATIENCE_S
            while until not in shown and time.monotonic() < deadline:
                if select.select([terminal], [], [], 0.1)[0]:
                    shown += os.read(terminal, 65536).decode(errors="replace")
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(terminal)
    return shown


class Shells(unittest.TestCase):
    def script(self, shell: str) -> str:
        done = run("tributary", "completion", shell)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def check(self, shell: str, ask: str, typed: "list[tuple[list[str], list[str], bool]]") -> None:
        """ask: of that shell, with the words as its arguments; prints what it would offer, and "PATHS"."""
        self.assertIsNotNone(shutil.which(shell), f"scripts/install_packages.sh installs {shell}")
        for words, wanted, paths in typed:
            done = run(shell, "-c", self.script(shell) + ask, shell, *words)
            self.assertEqual((done.returncode, done.stderr), (0, ""), words)
            found = done.stdout.split()
            self.assertEqual((sorted(set(found) - {"PATHS"}), "PATHS" in found), (sorted(wanted), paths), words)

    def test_bash(self) -> None:
        ask = """
            complete -p tributary tributary-server tributary-worker tributary-train >/dev/null || exit 1
            compopt() { [[ $* == "-o default" ]] && echo PATHS; }
            COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
            _tributary
            printf '%s\\n' "${COMPREPLY[@]}"
        """
        # As bash splits "--transport=s", and "--transport=" with the cursor behind it.
        split = [
            (["tributary", "up", "--transport", "=", "s"], ["shm"], False),
            (["tributary", "up", "--transport", "="], ["shm", "tcp", "ipc"], False),
            (["tributary", "up", "--base-dir", "="], [], True),
        ]
        self.check("bash", ask, TYPED + split)

    def test_at_a_terminal(self) -> None:
        zsh = "autoload -U compinit; compinit -u -D"
        for argv, before in ((["bash", "--norc", "-i"], "true"), (["zsh", "-f", "-i"], zsh)):
            load = f"{before}; source <(tributary completion {argv[0]})"
            for keys, wanted in (("tributary checkp\tre\t", "restore"), ("tributary up a-j\t", "a-job.toml")):
                with self.subTest(argv[0], keys=keys), tempfile.TemporaryDirectory() as folder:
                    (pathlib.Path(folder) / "a-job.toml").touch()
                    shown = typed_into(argv, [load], keys, wanted, folder)
                    self.assertIn(wanted, shown)

    def test_zsh(self) -> None:
        ask = """
            _describe() { print -l -- "${(@)${(@P)2}%%:*}" }
            _files() { print PATHS }
            words=("$@") CURRENT=$# PREFIX=${@[-1]}
            _tributary
        """
        # Outside of zsh's own completion, whose functions are these, it is only loaded.
        script = self.script("zsh").replace("  compdef ", "  true ")
        self.assertIn("  true _tributary", script)
        self.script = lambda shell: script  # type: ignore[method-assign, assignment]
        self.check("zsh", ask, [*TYPED, (["tributary", "up", "--transport=s"], ["--transport=shm"], False)])

    def test_fish(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "PATHS").touch()
            ask = f"""
                cd {folder}
                for line in (complete -C "$argv[2..-1]")
                    string split -f 1 \\t -- $line
                end
                true
            """
            self.check("fish", ask, [*TYPED, (["tributary", "up", "--transport=s"], ["--transport=shm"], False)])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
