#!/usr/bin/env bash
# The tests of the Python package, with torch and with the daemons of a build.
#
#   scripts/test_torch.sh BUILD_FOLDER
set -euo pipefail
build=$(realpath "$1")
TRIBUTARY_BIN_DIR=$build/bin TRIBUTARY_LIBRARY=$build/lib/libtributary.so.1 exec "$(dirname "$0")/../python/tests/run.sh"
