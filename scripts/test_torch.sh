#!/usr/bin/env bash
# The tests of the Python package, with torch and with the daemons of a build.
#
#   scripts/test_torch.sh BUILD_FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."
build=$(realpath "$1")
python=$(scripts/torch_environment.sh)
export PYTHONPATH=$PWD/python TRIBUTARY_BUILD=$build TRIBUTARY_LIBRARY=$build/lib/libtributary.so.1
"$python" -c 'import torch; print("torch", torch.__version__)'
cd python/tests
exec "$python" -m unittest test_breaks test_cluster test_data test_job
