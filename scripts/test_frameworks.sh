#!/usr/bin/env bash
# Hugging Face's Trainer, Lightning and Accelerate over the daemons of a build, compared with DistributedDataParallel.
# They come from PyPI, which takes a minute; the tests take eight.
#
#   scripts/test_frameworks.sh BUILD_FOLDER [TEST...]
set -euo pipefail
build=$(realpath "$1")
here=$(cd "$(dirname "$0")/.." && pwd)
# torch comes as scripts/torch_environment.sh says.
programs=$("$here/scripts/python_environment.sh" frameworks torch==2.13.0)
export TRIBUTARY_BIN_DIR=$build/bin TRIBUTARY_LIBRARY=$build/lib/libtributary.so.1
exec "$here/python/tests/run.sh" "$programs/python" test_framework_checks test_frameworks "${@:2}"
