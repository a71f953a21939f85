#!/usr/bin/env bash
# Hugging Face's Trainer, Lightning and Accelerate over the daemons of a build, compared with DistributedDataParallel.
# They come from PyPI into build/frameworks, which takes a minute; the tests take eight.
#
#   scripts/test_frameworks.sh BUILD_FOLDER [TEST...]
set -euo pipefail
build=$(realpath "$1")
here=$(cd "$(dirname "$0")/.." && pwd)
environment=$here/build/frameworks
packages=(transformers==5.24.0 accelerate==1.15.0 lightning==2.6.6)

if [ "$(cat "$environment/packages" 2>/dev/null)" != "${packages[*]}" ]; then
  python3 -m venv --clear "$environment"
  # In these words pip takes a CPU build of torch, where one is at hand, and no other later.
  "$environment/bin/pip" install --quiet torch==2.13.0 numpy
  "$environment/bin/python" -c 'import torch; print("torch==" + torch.__version__)' >"$environment/constraint"
  "$environment/bin/pip" install --quiet --constraint "$environment/constraint" "${packages[@]}"
  echo "${packages[*]}" >"$environment/packages"
fi
cd "$here/python/tests"
export PYTHONPATH=.. OMP_NUM_THREADS=1 TRIBUTARY_BIN_DIR=$build/bin TRIBUTARY_LIBRARY=$build/lib/libtributary.so.1
exec "$environment/bin/python" -m unittest --buffer test_framework_checks test_frameworks "${@:2}"
