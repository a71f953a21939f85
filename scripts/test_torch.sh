#!/usr/bin/env bash
# The tests of the Python package, with torch and with the daemons of a build. Two halves run at the same time.
#
#   scripts/test_torch.sh BUILD_FOLDER [HALF]
set -euo pipefail
build=$(realpath "$1")
here=$(cd "$(dirname "$0")" && pwd)
python=$("$here/torch_environment.sh")
TRIBUTARY_BIN_DIR=$build/bin TRIBUTARY_LIBRARY=$build/lib/libtributary.so.1 exec "$here/../python/tests/run.sh" "$python" "${2:-all}"
