#!/usr/bin/env bash
# Checks all sources with tools that need no build. Each checker prints what it found, and then one line:
# "lint: NAME: ok (1.2 s)" or "lint: NAME: failed (1.2 s)". The exit status is 0 only if all are ok.
#
#   scripts/lint.sh                 every checker
#   scripts/lint.sh ruff mypy       only those: clang-format, ruff, mypy, shellcheck, rooms, prose
#
# ruff and mypy come from PyPI into build/lint, always in the same versions (scripts/requirements/lint.txt, with their
# hashes): others have other rules.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

tools=scripts/requirements/lint.txt
lint=$PWD/build/lint

# files CONDITION...: the files that find's CONDITION holds for, without those that a build or a run has made.
files() {
  find . \( -path ./.git -o -path ./build -o -path ./runs -o -path ./.cache \) -prune -o -type f "$@"
}

# Makes the environment of ruff and mypy unless it is there.
python_tools() {
  mkdir -p build
  exec 9>"$lint.lock"
  flock 9
  cmp --quiet "$tools" "$lint/tools" && return
  if ! { python3 -m venv --clear "$lint" && "$lint/bin/pip" install --require-hashes -r "$tools"; } >"$lint.log" 2>&1; then
    tail -n 20 "$lint.log"
    echo "lint.sh: cannot install what $tools names into $lint; $lint.log has the whole output"
    return 1
  fi
  cp "$tools" "$lint/tools"
}

check() {
  case $1 in
    clang-format)
      files -regex '.*\.\(h\|c\|cc\|cu\|cuh\)' -print0 | xargs -0 -P "$(nproc)" -n 50 clang-format --dry-run --Werror
      ;;
    ruff)
      python_tools || return
      local status=0
      "$lint/bin/ruff" check --quiet --cache-dir build/ruff . || status=1
      "$lint/bin/ruff" format --quiet --check --cache-dir build/ruff . || status=1
      return "$status"
      ;;
    mypy)
      python_tools || return
      cd python && "$lint/bin/mypy" --no-error-summary --cache-dir ../build/mypy tributary
      ;;
    shellcheck)
      # The first line identifies a shell script, because most have no ending.
      files -exec awk '/^(#!.*[\/ ](ba|da)?sh|# shellcheck shell=)/ { print FILENAME } { nextfile }' {} + |
        xargs -P "$(nproc)" -n 8 shellcheck
      ;;
    rooms) python3 tests/test_rooms.py . ;;
    prose) scripts/check_prose.py ;;
    *)
      echo "lint.sh: unknown checker '$1'"
      return 1
      ;;
  esac
}

[ $# -gt 0 ] || set -- clang-format ruff mypy shellcheck rooms prose
failed=0
for name; do
  began=${EPOCHREALTIME/[.,]/}
  verdict=ok
  if ! found=$(check "$name" 2>&1); then
    verdict=failed
    failed=1
    echo "$found"
  fi
  tenths=$(((${EPOCHREALTIME/[.,]/} - began) / 100000))
  echo "lint: $name: $verdict ($((tenths / 10)).$((tenths % 10)) s)"
done
exit $failed
