#!/usr/bin/env bash
# Lints all sources, then builds and runs all tests: of the programs that are shipped, with every label but gpu (built, but run by hand where there is one), then the sanitizer builds with the labels that suit them.
# Tests that cannot run here (the lab's, without root) are named in lines that begin with "skipped:", those that failed in lines that begin with "failed:",
# each after the last lines that it printed.
# The last line is "N passed, N failed" over all of them; the exit status is 0 only if nothing failed and every build ran tests.
#
#   scripts/run_tests.sh                 everything
#   scripts/run_tests.sh release         one part only (lint, release, asan-ubsan or tsan)
set -uo pipefail
cd "$(dirname "$0")/.." || exit

# A compiler cache that survives moving the checkout.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros
jobs=$(nproc)
# For CMake's find_path: where nvcc lacks headers, the code that needs them is compiled all the same.
CMAKE_INCLUDE_PATH=$(scripts/fetch_cuda_headers.sh "$PWD/build/cuda-headers")
export CMAKE_INCLUDE_PATH
passed=0
failed=0
skipped=""  # names of tests that cannot run here, as the lab's without root
broken=""   # names of tests that failed, and their last lines, printed again at the end: the output above is long

# last_words PRESET REPORT: of every test that failed according to CTest's report, the last 15 lines that are not empty, and its name.
last_words() {
  awk -v preset="$1" '
    /<testcase / {
      failed = /status="fail"/
      name = $0
      sub(/.*<testcase name="/, "", name)
      sub(/".*/, "", name)
      lines = inside = 0
    }
    failed {
      line = $0
      if (sub(/.*<system-out>/, "", line)) inside = 1
      last = sub(/<\/system-out>.*/, "", line)
      if (inside && line ~ /[^ \t]/) printed[lines++] = line
      if (last) inside = 0
    }
    failed && /<\/testcase>/ {
      for (i = lines > 15 ? lines - 15 : 0; i < lines; ++i) print "  " printed[i]
      print "failed: " preset ": " name
    }' "$2" | sed "s/&lt;/</g; s/&gt;/>/g; s/&quot;/\"/g; s/&apos;/'/g; s/&amp;/\&/g"
}

# not_built WHAT LOG: counts a failure that is no test's, and keeps the end of its log for the summary.
not_built() {
  echo "== $1 failed"
  failed=$((failed + 1))
  broken+=$'\n'$(grep -v '^ *$' "$2" | tail -n 30 | sed 's/^/  /')$'\n'"failed: $1"
}

# run_lint: each checker of scripts/lint.sh counts as one test.
run_lint() {
  local log=build/lint_report.log ok bad
  echo "== lint"
  mkdir -p build
  scripts/lint.sh 2>&1 | tee "$log"
  ok=$(grep -c '^lint: .*: ok (' "$log")
  bad=$(grep -c '^lint: .*: failed (' "$log")
  if [ $((ok + bad)) -eq 0 ]; then
    not_built lint "$log"
    return
  fi
  broken+=$'\n'$(awk '
    /^lint: .*: ok \(/ { lines = 0; next }
    /^lint: .*: failed \(/ {
      for (i = lines > 15 ? lines - 15 : 0; i < lines; ++i) print "  " printed[i]
      sub(/: failed \(.*/, "")
      print "failed: " $0
      lines = 0
      next
    }
    /[^ \t]/ { printed[lines++] = $0 }' "$log")
  passed=$((passed + ok))
  failed=$((failed + bad))
}

# run_preset PRESET LABELS TARGET...: LABELS is a regular expression over CTest labels. Tests labelled gpu need a device:
# they are built, where CUDA is, and run by hand or by bench/gpu_check.
run_preset() {
  local preset=$1 labels=$2
  shift 2
  local build=build/$preset started=$SECONDS beside=$((jobs + 1))  # tests wait at times
  echo "== $preset: build"
  mkdir -p "$build"
  if ! cmake --preset "$preset" >"$build/configure.log" 2>&1; then
    cat "$build/configure.log"
    not_built "$preset: configuring" "$build/configure.log"
    return
  fi
  if ! cmake --build "$build" -j "$jobs" --target "$@" 2>&1 | tee "$build/build.log"; then
    not_built "$preset: the build" "$build/build.log"
    return
  fi
  echo "== $preset: built in $((SECONDS - started)) s; tests labelled $labels"
  local report=$PWD/$build/junit.xml
  rm -f "$report"
  ctest --test-dir "$build" -j "$beside" -L "$labels" -LE '^gpu$' --no-tests=error --output-on-failure --output-junit "$report"
  local status=$? ok=0 all=0 left_out=0
  if [ -f "$report" ]; then
    all=$(grep -c '<testcase ' "$report")
    # CTest writes status="run" for a test that ran and passed; "fail" and "notrun" are failures.
    ok=$(grep '<testcase ' "$report" | grep -c 'status="run"')
    # Only a test that said itself that it cannot run is no failure.
    left_out=$(grep -c '<skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"' "$report")
    skipped+=$'\n'$(grep -B 1 '<skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"' "$report" |
      sed -n 's/.*<testcase name="\([^"]*\)".*/skipped: \1/p')
    broken+=$'\n'$(last_words "$preset" "$report")
  fi
  local bad=$((all - ok - left_out))
  # No test, or CTest itself failed: a failure even if no test says so.
  if [ "$all" -eq 0 ] || { [ $status -ne 0 ] && [ $bad -eq 0 ]; }; then bad=$((bad + 1)); fi
  passed=$((passed + ok))
  failed=$((failed + bad))
  echo "== $preset: $ok of $all passed, $left_out skipped, $((SECONDS - started)) s with the build"
}

wanted=${1:-all}
case $wanted in
  all | lint | release | asan-ubsan | tsan) ;;
  *)
    echo "unknown part '$wanted': give lint, release, asan-ubsan or tsan, or nothing for all" >&2
    exit 2
    ;;
esac
if [ "$wanted" = all ] || [ "$wanted" = lint ]; then run_lint; fi
# The programs that the wheel, the bundle and the Debian package have. Where they cannot be linked, those of this machine.
if [ "$wanted" = all ] || [ "$wanted" = release ]; then
  mkdir -p build
  if scripts/portable_parts.sh build/portable-parts >build/portable-parts.log 2>&1; then
    run_preset portable '^(unit|io|sim|e2e)$' all
  elif [ $? -eq 3 ]; then
    skipped+=$'\n'"skipped: test_wheel: $(tail -n 1 build/portable-parts.log)"
    run_preset release '^(unit|io|sim|e2e)$' all
  else
    not_built "portable: what it is linked with" build/portable-parts.log
  fi
fi
if [ "$wanted" = all ] || [ "$wanted" = asan-ubsan ]; then
  run_preset asan-ubsan '^(unit|io|sim)$' tests_unit tests_io tests_sim
fi
# Under TSan only what has threads, which the simulator has not, and uses neither ZeroMQ nor RocksDB, which are not instrumented.
if [ "$wanted" = all ] || [ "$wanted" = tsan ]; then run_preset tsan '^unit$' tests_unit; fi

printf '%s\n%s\n' "$skipped" "$broken" | sed '/^$/d'
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
