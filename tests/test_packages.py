"""The installer of packages, on systems that are made up: which of a line's names it takes, and what it tells.

python3 tests/test_packages.py ROOT
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(sys.argv[1]) / "scripts"
LISTS = {"packages.txt": SCRIPTS / "packages.txt", "packages_test.txt": SCRIPTS / "packages_test.txt"}
# The programs of a system that the installer calls; dpkg itself compares versions.
COMMANDS = {
    "dpkg-query": 'shift 2; for p in "$@"; do grep "^$p " $SYSTEM/installed; done | sed "s/ / installed /"',
    "apt-cache": 'shift; for p in "$@"; do grep "^$p " $SYSTEM/known; done | '
    r"""sed -E 's/(\S+) (.*)/\1:\n  Installed: (none)\n  Candidate: \2\n  Version table:/'""",
    "apt-get": 'echo "$*" >>$SYSTEM/apt',
    "sudo": '"$@"',
}


class Packages(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.bin = self.folder / "bin"
        self.bin.mkdir()
        for name, does in COMMANDS.items():
            (self.bin / name).write_text(f"#!/bin/sh\n{does}\n")
            (self.bin / name).chmod(0o755)
        for name in ("bash", "cat", "dirname", "dpkg", "env", "grep", "id", "sed"):
            at = shutil.which(name)
            assert at is not None, f"{name} is on PATH"
            (self.bin / name).symlink_to(at)
        (self.folder / "scripts").mkdir()
        shutil.copy(SCRIPTS / "install_packages.sh", self.folder / "scripts")

    def install(
        self, lists: dict[str, str], installed: str = "", known: str = "", present: bool = False
    ) -> "subprocess.CompletedProcess[str]":
        """lists: by name, their text; installed and known: 'NAME VERSION' a line."""
        for name, text in lists.items():
            (self.folder / "scripts" / name).write_text(text)
        (self.folder / "installed").write_text(installed)
        (self.folder / "known").write_text(known)
        (self.folder / "apt").write_text("")
        environment = {"PATH": str(self.bin), "SYSTEM": str(self.folder)}
        if present:
            environment["TRIBUTARY_PACKAGES"] = "present"
        further = [name for name in lists if name != "packages.txt"]
        words = [str(self.folder / "scripts/install_packages.sh"), *further]
        return subprocess.run(words, capture_output=True, text=True, check=False, env=environment)

    def taken(self, lists: dict[str, str], installed: str = "", known: str = "") -> list[str]:
        """Returns the packages that apt-get was asked to install."""
        done = self.install(lists, installed, known)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        asked = (self.folder / "apt").read_text()
        found = re.search(r"install -y -qq --no-install-recommends (.*)", asked)
        return found.group(1).split() if found else [asked] if asked else []

    def test_the_first_that_is_known(self) -> None:
        lists = {"packages.txt": "# Libraries\none-1.81-dev | one-dev (>= 1.81)   # One\n\ntwo # Two\n"}
        self.assertEqual(self.taken(lists, "", "one-dev 1.74\none-1.81-dev 1.81\ntwo 1\n"), ["one-1.81-dev", "two"])
        self.assertEqual(self.taken(lists, "", "one-dev 1.83\ntwo 1\n"), ["one-dev", "two"])
        self.assertEqual(self.taken(lists, "two 1\n", "one-dev 1.83\ntwo 2\n"), ["one-dev"])

    def test_one_that_is_installed_but_too_old(self) -> None:
        lists = {"packages.txt": "one-1.81-dev | one-dev (>= 1.81)   # One\n"}
        self.assertEqual(self.taken(lists, "one-dev 1.74\n", "one-dev 1.74\none-1.81-dev 1.81\n"), ["one-1.81-dev"])
        self.assertEqual(self.taken(lists, "one-dev 1.74\n", "one-dev 1.83\n"), ["one-dev"])

    def test_nothing_is_missing(self) -> None:
        """Then apt is not asked."""
        lists = {"packages.txt": "one-1.81-dev | one-dev (>= 1.81)\n", "packages_test.txt": "two | three\n"}
        self.assertEqual(self.taken(lists, "one-dev 1.83\nthree 1\n", "one-1.81-dev 1.81\ntwo 1\n"), [])

    def test_a_further_list(self) -> None:
        lists = {"packages.txt": "one\n", "packages_test.txt": "two | three   # Two\n"}
        self.assertEqual(self.taken(lists, "one 1\n", "three 1\n"), ["three"])

    def test_unknown_to_apt(self) -> None:
        lists = {"packages.txt": "one-1.81-dev | one-dev (>= 1.81)   # One, to build with\ntwo   # Two\n"}
        done = self.install(lists, "", "two 1\none-dev 1.74\n")
        self.assertEqual(done.returncode, 1)
        self.assertIn("  One, to build with (tried: one-1.81-dev, one-dev >= 1.81)\n", done.stderr)
        self.assertNotIn("Two", done.stderr)
        self.assertNotIn("install", (self.folder / "apt").read_text())

    def test_another_system(self) -> None:
        """All wanted packages are listed, with their purpose; if they are declared present, everything continues."""
        for name in ("apt-get", "dpkg-query", "dpkg"):
            (self.bin / name).unlink()
        lists = {name: path.read_text() for name, path in LISTS.items()}
        done = self.install(lists)
        self.assertEqual(done.returncode, 1)
        told = re.findall(r"^  (\S.*) \(tried: (.+)\)$", done.stderr, re.MULTILINE)
        lines = [line for text in lists.values() for line in text.splitlines() if line and not line.startswith("#")]
        self.assertEqual(len(told), len(lines))
        self.assertIn(("Boost 1.81 or newer, headers", "libboost1.81-dev, libboost-dev >= 1.81"), told)
        self.assertIn("TRIBUTARY_PACKAGES=present", done.stderr)
        self.assertEqual(self.install(lists, present=True).returncode, 0)

    def test_neither_root_nor_sudo(self) -> None:
        (self.bin / "sudo").unlink()
        (self.bin / "id").unlink()
        (self.bin / "id").write_text("#!/bin/sh\necho 1000\n")
        (self.bin / "id").chmod(0o755)
        done = self.install({"packages.txt": "one | two   # One\n"}, "", "two 1\n")
        self.assertEqual(done.returncode, 1)
        self.assertIn("  One (tried: one, two)\n", done.stderr)
        self.assertEqual((self.folder / "apt").read_text(), "")

    def test_the_lists(self) -> None:
        name = r"[a-z0-9][a-z0-9+.-]+( \(>= [0-9.]+\))?"
        for path in LISTS.values():
            for line in path.read_text().splitlines():
                if line and not line.startswith("#"):
                    self.assertRegex(line, rf"^{name}( \| {name})* +# \S.*$")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
