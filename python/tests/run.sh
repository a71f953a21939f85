#!/usr/bin/env bash
# The tests of the Python package, with torch and with real daemons. Everything that they start ends with them.
#
#   TRIBUTARY_BIN_DIR=FOLDER TRIBUTARY_LIBRARY=FILE python/tests/run.sh [PYTHON [WHAT]]
#
# By default both are those of build/release, and PYTHON (also "") is what scripts/torch_environment.sh finds. WHAT:
#   1, 2, all                      a half of the tests, or all, which is the default
#   test_place test_data.Sampling  tests by name, in any room, as unittest has them
#   tables/table_of_loops.py LOOP  a program of these folders, and its arguments
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${1:-$("$here/../../scripts/torch_environment.sh")}
rooms=$(printf ':%s' "$here"/*/)  # modules import each other by name, whatever their rooms
export PYTHONPATH=$here/..$rooms OMP_NUM_THREADS=1
"$python" -c 'import torch; print("torch", torch.__version__)'
cd "$here"
"$python" -m compileall -q .. # where Python writes no bytecode by itself, each rank would compile the package
first=(test_cluster test_twins test_processes test_loops test_elastic test_launchers test_init)
second=(test_needs test_job test_data test_place test_again test_together test_breaks test_numbers test_endings test_shared test_streams
  test_state test_checkpoints test_orders test_lost_disk test_tutorial test_parallel test_fsdp test_bench test_ladder test_gather test_collectives
  test_batches test_from_ddp test_loops_values)
case ${2:-all} in
  1) tests=("${first[@]}") ;;
  2) tests=("${second[@]}") ;;
  all) tests=("${second[@]}" "${first[@]}") ;;
  *.py) exec "$python" "${@:2}" ;;
  *) tests=("${@:2}") ;;
esac
exec "$python" -m unittest --buffer "${tests[@]}"
