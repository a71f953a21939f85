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
import urllib.parse


def component(copyright_file: pathlib.Path) -> dict:
    name = copyright_file.name
    query = [
        "dpkg-query",
        "--show",
        "--showformat",
        "${source:Package} ${source:Version} ${Version} ${Architecture}\n",
        name,
    ]
    shown = subprocess.run(query, check=True, text=True, capture_output=True).stdout.splitlines()[0]
    source, version, package_version, machine = shown.split()
    purl = f"pkg:deb/debian/{name}@{urllib.parse.quote(package_version, safe=':')}?arch={machine}"
    if name == "libgloo-dev":  # the code that is linked in is another package's copy
        parts = pathlib.Path(__file__).with_name("portable_parts.sh").read_text(encoding="utf-8")
        package, release = re.findall(r"^gloo=(\S+)==(\S+)$", parts, re.MULTILINE)[0]
        version, purl = f"of {package} {release}", f"pkg:pypi/{package}@{release}"
    text = copyright_file.read_text(encoding="utf-8", errors="replace")
    licences = sorted(set(re.findall(r"^License: *(\S.*?) *$", text, re.MULTILINE)))
    return {
        "type": "library",
        "name": source,
        "version": version,
        "purl": purl,
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
