#!/usr/bin/env bash
# Hugging Face's Trainer, Lightning and Accelerate over the daemons of a build, compared with DistributedDataParallel.
# They come from PyPI into build/frameworks, which takes a minute; the tests take eight.
#
#   scripts/test_frameworks.sh BUILD_FOLDER [TEST...]
set -euo pipefail
build=$(realpath "$1")
here=$(cd "$(dirname "$0")/.." && pwd)
environment=$here/build/frameworks
packages=$here/scripts/requirements/frameworks.txt

if ! cmp --quiet "$packages" "$environment/packages"; then
  python3 -m venv --clear "$environment"
  # The file has all but torch, which comes as scripts/torch_environment.sh says.
  "$environment/bin/pip" install --quiet --no-deps --require-hashes -r "$packages"
  "$environment/bin/pip" install --quiet torch==2.13.0
  cp "$packages" "$environment/packages"
fi
cd "$here/python/tests"
export PYTHONPATH=.. OMP_NUM_THREADS=1 TRIBUTARY_BIN_DIR=$build/bin TRIBUTARY_LIBRARY=$build/lib/libtributary.so.1
exec "$environment/bin/python" -m unittest --buffer test_framework_checks test_frameworks "${@:2}"
