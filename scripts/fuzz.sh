#!/usr/bin/env bash
# Builds the fuzz targets (tests/fuzz) with clang, and runs one after the other, each for SECONDS (600). A line for each: what it tried, how fast, how many edges of the
# code it has covered, and what it found. Needs the packages clang-19 and libclang-rt-19-dev, as `make test` does.
#
#   scripts/fuzz.sh [SECONDS [TARGET...]]      all targets, or those named: data, control ...
#
# Inputs that cover new code stay in build/fuzz/corpus, from run to run; inputs that found something are in
# build/fuzz/findings. The exit status is 0 only if there is none.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-600}
shift || true
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
for package in clang-19 libclang-rt-19-dev; do
  [ "$(dpkg-query -W -f='${db:Status-Status}' $package 2>/dev/null)" = installed ] && continue
  echo "the fuzzers are built with Debian's package $package: install it, and try again" >&2
  exit 2
done
cmake --preset fuzz >/dev/null
cmake --build --preset fuzz
targets=("$@")
if [ $# -eq 0 ]; then
  targets=(tests/fuzz/fuzz_*.cc)
  targets=("${targets[@]#tests/fuzz/fuzz_}")
  targets=("${targets[@]%.cc}")
fi

# Two callers of every allocation: unwinding all of them takes a third of the time.
export ASAN_OPTIONS=malloc_context_size=2
found=0
for target in "${targets[@]}"; do
  corpus=build/fuzz/corpus/$target findings=build/fuzz/findings/$target log=build/fuzz/$target.log
  mkdir -p "$corpus" "$findings"
  status=0
  # An input of some kilobytes must not make a parser take 256 MiB, nor 20 seconds.
  nice -n 19 build/fuzz/bin/fuzz "$target" -max_total_time="$seconds" -max_len=20000 -malloc_limit_mb=256 -timeout=20 \
    -print_final_stats=1 -artifact_prefix="$findings/" "$corpus" >"$log" 2>&1 || status=$?
  awk -v target="$target" -v status=$status '
    /stat::number_of_executed_units/ { runs = $2 }
    /stat::average_exec_per_sec/ { speed = $2 }
    match($0, /cov: [0-9]+/) { edges = substr($0, RSTART + 5, RLENGTH - 5) }
    /SUMMARY:|does not hold:|assertion failed/ && what == "" { what = $0 }
    END {
      printf "%-14s %10d inputs %7d a second %6d edges  %s\n", target, runs, speed, edges,
        status == 0 ? "no finding" : what != "" ? "finding: " what : "ended with status " status ": see its log"
    }' "$log"
  [ $status -eq 0 ] || found=1
done
exit $found
