#!/usr/bin/env bash
# The tests of the Python package, with torch and with real daemons. Everything that they start ends with them.
#
#   TRIBUTARY_BIN_DIR=FOLDER TRIBUTARY_LIBRARY=FILE python/tests/run.sh [PYTHON [HALF]]
#
# By default both are those of build/release, and PYTHON is what scripts/torch_environment.sh finds. HALF: 1 or 2; without it, all tests.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${1:-$("$here/../../scripts/torch_environment.sh")}
export PYTHONPATH=$here/..:$here/quick_start OMP_NUM_THREADS=1
"$python" -c 'import torch; print("torch", torch.__version__)'
cd "$here"
"$python" -m compileall -q .. # where Python writes no bytecode by itself, each rank would compile the package
first="test_cluster test_twins test_processes test_loops test_elastic test_launchers test_init"
second="test_needs test_job test_data test_place test_again test_together test_breaks test_numbers test_endings test_shared test_streams test_state
  test_checkpoints test_orders test_lost_disk test_tutorial test_parallel test_fsdp test_bench test_gather test_collectives test_batches test_from_ddp test_loops_values"
case ${2:-all} in
  1) tests=$first ;;
  2) tests=$second ;;
  *) tests="$second $first" ;;
esac
# shellcheck disable=SC2086  # a list of words
exec "$python" -m unittest --buffer $tests
