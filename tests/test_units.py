"""The systemd units: sound, as systemd-analyze says, and exposed to little."""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

UNITS = pathlib.Path(sys.argv[1]) / "packaging" / "systemd"
# Scores of systemd-analyze security: 0 exposes nothing, 10 everything. The worker shares memory with a user's trainers.
MOST_EXPOSED = {"tributary-server.service": 2.0, "tributary-worker@.service": 4.5}


def said(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(words, capture_output=True, text=True, check=False)


class Units(unittest.TestCase):
    def setUp(self) -> None:
        self.assertIsNotNone(shutil.which("systemd-analyze"), "scripts/install_packages.sh installs systemd")

    def units(self, folder: pathlib.Path) -> list[pathlib.Path]:
        """Copies whose programs are there, which verify looks for."""
        copies = []
        for unit in sorted(UNITS.glob("*.service")):
            copy = folder / unit.name
            copy.write_text(re.sub(r"/usr/bin/tributary-\w+", "/bin/true", unit.read_text()))
            copies.append(copy)
        self.assertEqual({copy.name for copy in copies}, set(MOST_EXPOSED))
        return copies

    def test_sound(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for unit in self.units(pathlib.Path(folder)):
                done = said("systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit))
                self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""), unit.name)

    def test_a_wrong_unit_is_found(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            unit = pathlib.Path(folder) / "wrong.service"
            unit.write_text("[Service]\nExecStart=/bin/true\nProtectSytem=strict\n")
            done = said("systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit))
            self.assertIn("ProtectSytem", done.stdout + done.stderr)

    def test_nothing_of_one_users_worker_is_anothers(self) -> None:
        """Instances share a unit: key, configuration and folder are named after the user."""
        unit = (UNITS / "tributary-worker@.service").read_text()
        own = re.findall(
            r"^(?:LoadCredential=key:|User=|RuntimeDirectory=|ExecStart(?:Pre)?=/usr/bin/tributary).*$",
            unit,
            re.MULTILINE,
        )
        self.assertEqual(len(own), 5, own)
        for line in own:
            self.assertIn("%i", line)

    def test_a_worker_reaches_mps(self) -> None:
        """Its own /tmp hides the pipes of MPS, unless they are mounted there."""
        unit = (UNITS / "tributary-worker@.service").read_text()
        self.assertRegex(unit, r"(?m)^PrivateTmp=yes$")
        self.assertRegex(unit, r"(?m)^BindPaths=-/tmp/nvidia-mps$")
        self.assertNotRegex(unit, r"(?m)^ReadWritePaths=.*/tmp")
        self.assertRegex(unit, r"(?m)^After=.*\bnvidia-mps\.service\b")

    def test_bounded(self) -> None:
        """Memory, threads and descriptors: what a peer can make a daemon take stays within its unit."""
        for name in MOST_EXPOSED:
            unit = (UNITS / name).read_text()
            bounds = dict(re.findall(r"^(MemoryMax|TasksMax|LimitNOFILE)=(\d+%?)$", unit, re.MULTILINE))
            self.assertEqual(set(bounds), {"MemoryMax", "TasksMax", "LimitNOFILE"}, name)
            for line in ("PrivateTmp=yes", "ProtectProc=invisible"):
                self.assertRegex(unit, rf"(?m)^{line}$", name)

    def test_exposed_to_little(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for unit in self.units(pathlib.Path(folder)):
                done = said("systemd-analyze", "security", "--offline=true", "--no-pager", str(unit))
                found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
                self.assertIsNotNone(found, done.stdout + done.stderr)
                assert found is not None
                self.assertLessEqual(float(found.group(1)), MOST_EXPOSED[unit.name], done.stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
