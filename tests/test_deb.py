"""The Debian package: what is in it, and what installing, upgrading, removing and purging it does to a root of its own.

    test_deb.py ROOT BUILD [--install]      ROOT: of the repository; BUILD: a built tree

With --install also on this machine, as root, and purged again; the user `tributary` stays.
"""

import io
import os
import pathlib
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import unittest

ROOT, BUILD = pathlib.Path(sys.argv[1]).absolute(), pathlib.Path(sys.argv[2]).absolute()
INSTALLS = "--install" in sys.argv[3:]
COMMANDS = {"tributary": 1, "tributary-server": 8, "tributary-worker": 8, "tributary-train": 1}
PROGRAMS = (*COMMANDS, "tributary-bench")  # which tributary starts
# Where files may be.
PLACES = (
    "usr/bin/tributary",
    "usr/include/tributary.h",
    "usr/lib/libtributary.so",
    "usr/lib/cmake/Tributary/",
    "usr/lib/pkgconfig/tributary.pc",
    "usr/lib/tributary/lib/",  # of portable programs
    "usr/lib/systemd/system/tributary-",
    "usr/lib/sysusers.d/tributary.conf",
    "usr/share/bash-completion/completions/tributary",
    "usr/share/fish/vendor_completions.d/tributary",
    "usr/share/zsh/vendor-completions/_tributary",
    "usr/share/man/man1/tributary",
    "usr/share/man/man8/tributary",
    "usr/share/doc/tributary/",
)
# dpkg's own programs, and those of its scripts.
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"


def run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, "PATH": PATH})
    assert done.returncode == 0, f"{' '.join(words)} ends with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


class Package(unittest.TestCase):
    folder: pathlib.Path
    package: str
    files: dict[str, tarfile.TarInfo]
    unpacked: pathlib.Path

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = pathlib.Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.package = run(str(ROOT / "scripts/make_deb.sh"), str(BUILD), str(cls.folder)).splitlines()[-1]
        packed = subprocess.run(["dpkg-deb", "--fsys-tarfile", cls.package], capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            cls.files = {re.sub(r"^\./", "", member.name): member for member in archive.getmembers()}
        cls.unpacked = cls.folder / "unpacked"
        run("dpkg-deb", "--raw-extract", cls.package, str(cls.unpacked))

    def field(self, name: str) -> str:
        return run("dpkg-deb", "--field", self.package, name).strip()

    def test_what_it_says_of_itself(self) -> None:
        self.assertEqual(self.field("Package"), "tributary")
        self.assertEqual(f"tributary {self.field('Version')}", run(str(BUILD / "bin/tributary"), "--version").strip())
        self.assertEqual(self.field("Architecture"), run("dpkg", "--print-architecture").strip())
        self.assertRegex(self.field("Maintainer"), r"^[^<>]+ <\S+@\S+>$")
        self.assertRegex(self.field("Description"), r"^distributed training.+\n( \S.*\n)+ \.\n( \S.*(\n|$))+")
        needed = [re.sub(r" .*", "", package) for package in self.field("Depends").split(", ")]
        if "TRIBUTARY_PORTABLE:BOOL=ON" in (BUILD / "CMakeCache.txt").read_text():
            self.assertEqual(set(needed), {"systemd", "libc6"})
        else:
            for package in ("systemd", "libc6", "libstdc++6", "libzmq5", "libsodium23", "libgloo0"):
                self.assertIn(package, needed)
        self.assertNotIn("Conffiles", run("dpkg-deb", "--info", self.package))

    def test_what_is_where(self) -> None:
        for name, file in self.files.items():
            self.assertEqual((file.uid, file.gid, file.uname, file.gname), (0, 0, "root", "root"), name)
            program = name.startswith("usr/bin/")
            if file.isdir():
                self.assertEqual(stat.filemode(file.mode), "?rwxr-xr-x", name)
                continue
            self.assertTrue(name.startswith(PLACES), name)
            self.assertTrue(file.isfile() or file.issym(), name)
            self.assertEqual(
                stat.filemode(file.mode)[1:],
                "rwxrwxrwx" if file.issym() else "rwxr-xr-x" if program else "rw-r--r--",
                name,
            )
            if file.issym():
                self.assertTrue((self.unpacked / name).exists(), f"{name} -> {file.linkname}")
        self.assertEqual(
            {name for name in self.files if name.startswith("usr/bin/")}, {f"usr/bin/{p}" for p in PROGRAMS}
        )
        # Made, and empty: whatever listens is configured by somebody.
        self.assertEqual([name for name in self.files if name.startswith("etc/")], ["etc/tributary"])
        for name, section in COMMANDS.items():
            self.assertIn(f"usr/share/man/man{section}/{name}.{section}.gz", self.files)
            self.assertIn(f"usr/share/bash-completion/completions/{name}", self.files)
            self.assertIn(f"usr/share/fish/vendor_completions.d/{name}.fish", self.files)
        for command in ("up", "bench"):  # of either program
            self.assertIn(f"usr/share/man/man1/tributary-{command}.1.gz", self.files)
        for example in ("server.toml", "worker.toml", "fashion-mnist.toml"):
            self.assertIn(f"usr/share/doc/tributary/examples/configs/{example}", self.files)

    def test_nothing_of_the_building_machine(self) -> None:
        for name in self.files:
            path = self.unpacked / name
            if not path.is_file():
                continue
            text = path.read_bytes()
            self.assertFalse(str(BUILD).encode() in text, f"{name} has the build's path")
            if text.startswith(b"\x7fELF"):
                said = run("readelf", "--wide", "--dynamic", "--sections", str(path))
                self.assertNotRegex(said, r"RUNPATH|\.debug_|\.symtab", name)
                for folder in re.findall(r"\(RPATH\).*\[(.*)\]", said):
                    self.assertIn(folder, ("$ORIGIN/../lib", "$ORIGIN/../lib/tributary/lib"), name)

    def test_sums(self) -> None:
        control = self.unpacked / "DEBIAN"
        summed = (control / "md5sums").read_text().splitlines()
        self.assertEqual(
            {line.split("  ")[1] for line in summed}, {n for n, file in self.files.items() if file.isfile()}
        )
        for name in ("postinst", "prerm", "postrm"):
            run("sh", "-n", str(control / name))
            self.assertEqual(stat.filemode((control / name).stat().st_mode), "-rwxr-xr-x", name)

    def test_programs_start(self) -> None:
        for name in PROGRAMS:
            program = str(self.unpacked / "usr/bin" / name)
            self.assertEqual(run(program, "--version").strip(), f"{name} {self.field('Version')}")
            self.assertNotIn("not found", run("ldd", program))

    def test_units(self) -> None:
        units = sorted((self.unpacked / "usr/lib/systemd/system").iterdir())
        self.assertEqual(len(units), 2)
        verify = ("systemd-analyze", "verify", f"--root={self.unpacked}", "--man=no", "--recursive-errors=no")
        for unit in units:
            self.assertEqual(run(*verify, str(unit)), "", unit.name)
            for page in re.findall(r"^Documentation=file:/(\S+)", unit.read_text(), re.MULTILINE):
                self.assertIn(page, self.files)
        # It looks for the programs.
        server = self.unpacked / "usr/bin/tributary-server"
        server.rename(server.with_suffix(".gone"))
        try:
            with self.assertRaisesRegex(AssertionError, "tributary-server is not executable"):
                run(*verify, "tributary-server.service")
        finally:
            server.with_suffix(".gone").rename(server)

    def test_a_life(self) -> None:
        """Installed, upgraded, removed, installed again and purged, in a root with nothing else."""
        root = self.folder / "root"
        for folder in ("var/lib/dpkg/updates", "var/lib/dpkg/info", "etc"):
            (root / folder).mkdir(parents=True)
        (root / "var/lib/dpkg/status").touch()
        # The package's dependencies are missing here, and its scripts get the root (DPKG_ROOT).
        options = [f"--root={root}", f"--log={root}/log", "--force-depends", "--force-script-chrootless"]
        dpkg = [*([] if os.geteuid() == 0 else ["fakeroot"]), "dpkg", *options]
        made = root / "etc/tributary"
        program = root / "usr/bin/tributary-server"

        run(*dpkg, "--install", self.package)
        self.assertIn("tributary install ok installed", self.status(root))
        self.assertTrue(program.is_file())
        self.assertRegex((root / "etc/passwd").read_text(), r"(?m)^tributary:.*:/var/lib/tributary:/usr/sbin/nologin$")
        self.assertEqual(list(made.iterdir()), [])

        own = {"server.toml": "[server]\nindex = 0\n", "keys/server.key": "secret\n", "worker.toml": "[worker]\n"}
        (made / "keys").mkdir(mode=0o700)
        for name, text in own.items():
            (made / name).write_text(text)
            (made / name).chmod(0o600)

        def untouched() -> None:
            self.assertEqual({name: (made / name).read_text() for name in own}, own)
            self.assertEqual({stat.S_IMODE((made / name).stat().st_mode) for name in own}, {0o600})
            links = [path for path in (root / "etc").rglob("*") if path.is_symlink()]
            self.assertEqual(links, [], "a unit is enabled")

        untouched()
        run(*dpkg, "--install", self.package)  # an upgrade
        untouched()
        run(*dpkg, "--remove", "tributary")
        untouched()
        self.assertFalse((root / "usr").exists(), [str(path) for path in (root / "usr").rglob("*")])
        run(*dpkg, "--install", self.package)
        untouched()
        run(*dpkg, "--purge", "tributary")
        untouched()
        self.assertFalse(program.exists())
        self.assertNotIn("tributary", self.status(root))

    @unittest.skipUnless(INSTALLS, "only with --install")
    def test_on_this_machine(self) -> None:
        run("dpkg", "--install", self.package)
        try:
            self.assertEqual(run("/usr/bin/tributary", "--version").strip(), f"tributary {self.field('Version')}")
            self.assertEqual(run("getent", "passwd", "tributary").split(":")[5], "/var/lib/tributary")
            self.assertIn("/lib/libtributary.so.1", run("ldconfig", "-p"))
            self.assertIn("tributary-up.1", run("man", "-w", "tributary-up"))
            for name in self.enabled():
                self.fail(f"{name} is enabled")
        finally:
            run("dpkg", "--purge", "tributary")
        self.assertFalse(pathlib.Path("/usr/bin/tributary").exists())

    @staticmethod
    def enabled() -> list[str]:
        return [str(path) for path in pathlib.Path("/etc/systemd").rglob("*.wants/tributary-*")]

    @staticmethod
    def status(root: pathlib.Path) -> str:
        return run("dpkg-query", f"--admindir={root}/var/lib/dpkg", "--show", "--showformat=${Package} ${Status}\n")


if __name__ == "__main__":
    if not (BUILD / "CPackConfig.cmake").exists():
        sys.exit(
            f"{BUILD} is built for GPUs, whose libraries no Debian package has: configure it with -DTRIBUTARY_CUDA=OFF"
        )
    unittest.main(argv=sys.argv[:1])
