#!/usr/bin/env bash
# Prints a file for `pip install --require-hashes`: these packages with the SHA-256 of every wheel that Linux on x86-64 or
# arm64 takes of them with Python 3.11 to 3.14. Name the packages that these need, too. scripts/requirements has the files.
#
#   scripts/hash_packages.sh PACKAGE==VERSION...
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export PIP_CONFIG_FILE=/dev/null PIP_FIND_LINKS=  # hashes of what PyPI has, whatever this machine prefers
for python in 3.11 3.12 3.13 3.14; do
  for machine in x86_64 aarch64; do
    platforms=()
    for tag in 2014 _2_17 _2_26 _2_27 _2_28 _2_31 _2_34; do platforms+=(--platform "manylinux${tag}_$machine"); done
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --python-version "$python" \
      "${platforms[@]}" --dest "$folder" "$@" >&2
  done
done
echo "# Made by: scripts/hash_packages.sh $*"
python3 - "$folder" "$@" <<'PYTHON'
import hashlib
import pathlib
import re
import sys

wheels = list(pathlib.Path(sys.argv[1]).glob("*.whl"))
for package in sys.argv[2:]:
    start = re.sub(r"[-_.]+", "_", package.split("==")[0]).lower() + "-" + package.split("==")[1] + "-"
    found = {hashlib.sha256(w.read_bytes()).hexdigest() for w in wheels if w.name.lower().startswith(start)}
    if not found:
        sys.exit(f"no wheel of {package}")
    print(" \\\n    ".join([package, *(f"--hash=sha256:{one}" for one in sorted(found))]))
PYTHON
