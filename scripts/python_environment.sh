#!/usr/bin/env bash
# Prints the folder of the programs of a Python environment, with the packages of scripts/requirements/NAME.txt, each taken
# with its hash. The environment is made in build/python/NAME unless it is there, with the same packages.
#
#   scripts/python_environment.sh NAME [PACKAGE...]      PACKAGE: installed last, without a hash
#
# scripts/hash_packages.sh prints such a file. The file names all packages that those in it need.
set -euo pipefail
cd "$(dirname "$0")/.."

name=$1
shift
packages=scripts/requirements/$name.txt
environment=$PWD/build/python/$name
wanted=$(cat "$packages" && printf '%s\n' "$@")
mkdir -p build/python
exec 9>"$environment.lock"
flock 9 # callers that run side by side make it once
if [ "$(cat "$environment/packages" 2>/dev/null)" != "$wanted" ]; then
  log=$environment.log
  if ! {
    python3 -m venv --clear "$environment" &&
      "$environment/bin/pip" install --no-deps --require-hashes -r "$packages" &&
      { [ $# -eq 0 ] || "$environment/bin/pip" install "$@"; }
  } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "python_environment.sh: cannot install the packages of $packages $* into $environment; $log has the whole output" >&2
    exit 1
  fi
  printf '%s\n' "$wanted" >"$environment/packages"
fi
echo "$environment/bin"
