"""Writes a file for CTest with a test for each case of a doctest program, by the name of the case's source.

discover.py PROGRAM FILE [PROPERTY VALUE]...      the properties of each test, as set_tests_properties() takes them
"""

from __future__ import annotations

import pathlib
import subprocess
import sys
import xml.etree.ElementTree as ElementTree


def quoted(text: str) -> str:
    """A bracket argument, in which CMake changes nothing."""
    return f"[==[{text}]==]"


def main() -> None:
    program, out, *properties = sys.argv[1:]
    said = subprocess.run(
        [program, "--list-test-cases", "--reporters=xml"], check=True, capture_output=True, text=True
    ).stdout
    lines, seen = [], set()
    for case in ElementTree.fromstring(said).iter("TestCase"):
        # With a compiler cache that has a base, a source's path is relative, to one of the build's folders.
        source = pathlib.PurePath(case.attrib["filename"])
        depth = source.parts[::-1].index("tests")
        place = pathlib.PurePath(*source.parts[-depth:]).with_suffix("")
        if place.parts[0] == "unit":
            place = place.relative_to("unit")
        name = f"{place}: {case.attrib['name']}"
        if name in seen:
            sys.exit(f"discover.py: two cases are called '{name}'; give one of them another name")
        seen.add(name)
        # doctest parts its filters at commas.
        words = [program, "--test-case=" + case.attrib["name"].replace(",", "\\,"), f"--source-file=*/{source.name}"]
        lines.append(f"add_test({quoted(name)} {' '.join(map(quoted, words))})")
        if properties:
            lines.append(f"set_tests_properties({quoted(name)} PROPERTIES {' '.join(map(quoted, properties))})")
    pathlib.Path(out).write_text("\n".join(lines) + "\n", encoding="utf-8")


main()
