"""The functions that libtributary.so shows, the libraries that it needs, and how it is linked.

The functions are those of session/tributary.symbols and of the header, the libraries Cap'n Proto's and the system's.
"""

import pathlib
import re
import subprocess
import sys
import unittest

# Cap'n Proto and its kj, the C++ library, and what every program has.
ALLOWED = re.compile(
    r"(libcapnp|libkj)-[0-9.]+\.so|libstdc\+\+\.so\.6|libgcc_s\.so\.1|lib(c|m|dl|rt|pthread)\.so\.[0-9]|ld-linux-[^/]*"
)


def output(*command: str) -> str:
    environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout


class Library(unittest.TestCase):
    def test_it_shows_the_listed_functions_and_no_others(self) -> None:
        shown = sorted(line.split()[-1] for line in output("nm", "-D", "--defined-only", str(LIBRARY)).splitlines())
        self.assertEqual(shown, self.listed())

    def test_the_header_declares_the_listed_functions(self) -> None:
        text = HEADER.read_text(encoding="utf-8")
        declared = re.findall(r"^TRIBUTARY_API [^;(]*?\b(tributary_\w+)\(", text, re.MULTILINE)
        self.assertEqual(sorted(declared), self.listed())

    def test_it_needs_no_library_but_the_allowed_ones(self) -> None:
        dynamic = output("readelf", "-d", str(LIBRARY))
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
        self.assertTrue(needed)
        self.assertEqual([name for name in needed if not ALLOWED.fullmatch(name)], [])
        self.assertEqual(re.findall(r"\(SONAME\).*\[(.*)\]", dynamic), ["libtributary.so.1"])

    def test_its_relocations_are_read_only_once_it_is_loaded(self) -> None:
        headers = output("readelf", "--wide", "--program-headers", "--dynamic", str(LIBRARY))
        self.assertIn("GNU_RELRO", headers)
        self.assertRegex(headers, r"\(FLAGS_1\).*NOW")

    def listed(self) -> list[str]:
        names = SYMBOLS.read_text(encoding="utf-8").split()
        self.assertEqual(names, sorted(names), f"{SYMBOLS} is not sorted")
        return names


if __name__ == "__main__":
    ROOT, LIBRARY = pathlib.Path(sys.argv.pop(1)), pathlib.Path(sys.argv.pop(1))
    SYMBOLS, HEADER = ROOT / "session/tributary.symbols", ROOT / "session/tributary.h"
    unittest.main()
