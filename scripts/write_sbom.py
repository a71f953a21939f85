#!/usr/bin/env python3
"""Writes what an install of Tributary contains beside its own code, as CycloneDX 1.5: FOLDER/sbom.cdx.json.

usage: write_sbom.py FOLDER VERSION

FOLDER/licences has a file for each package whose code is there; this machine's dpkg has their versions. Licences are
named as the copyright files name them.
"""

import json
import pathlib
import re
import subprocess
import sys


def component(copyright_file: pathlib.Path) -> dict:
    name = copyright_file.name
    query = ["dpkg-query", "--show", "--showformat", "${source:Package} ${source:Version} ${Architecture}", name]
    source, version, machine = subprocess.run(query, check=True, text=True, capture_output=True).stdout.split()
    text = copyright_file.read_text(encoding="utf-8", errors="replace")
    licences = sorted(set(re.findall(r"^License: *(\S.*?) *$", text, re.MULTILINE)))
    return {
        "type": "library",
        "name": source,
        "version": version,
        "purl": f"pkg:deb/debian/{name}@{version}?arch={machine}",
        "licenses": [{"license": {"name": licence}} for licence in licences or [f"see licences/{name}"]],
    }


def main(folder: str, version: str) -> None:
    top = {"type": "application", "name": "tributary", "version": version}
    top["licenses"] = [{"license": {"id": "Apache-2.0"}}]
    sbom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": top},
        "components": [component(file) for file in sorted((pathlib.Path(folder) / "licences").iterdir())],
    }
    text = json.dumps(sbom, indent=1, ensure_ascii=False) + "\n"
    (pathlib.Path(folder) / "sbom.cdx.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
