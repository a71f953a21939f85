#!/usr/bin/env bash
# Checks all sources with tools that need no build. Each checker prints what it found, and then one line:
# "lint: NAME: ok (1.2 s)" or "lint: NAME: failed (1.2 s)". The exit status is 0 only if all are ok.
#
#   scripts/lint.sh                 every checker
#   scripts/lint.sh ruff mypy       only those: clang-format, ruff, mypy, shellcheck, rooms, prose
#
# ruff and mypy come from PyPI, always in the same versions: others have other rules.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

# files CONDITION...: the files that find's CONDITION holds for, without those that a build or a run has made.
files() {
  find . \( -path ./.git -o -path ./build -o -path ./runs -o -path ./.cache \) -prune -o -type f "$@"
}

check() {
  case $1 in
    clang-format)
      files -regex '.*\.\(h\|c\|cc\|cu\|cuh\)' -print0 | xargs -0 -P "$(nproc)" -n 50 clang-format --dry-run --Werror
      ;;
    ruff)
      local programs status=0
      programs=$(scripts/python_environment.sh lint) || return
      "$programs/ruff" check --quiet --cache-dir build/ruff . || status=1
      "$programs/ruff" format --quiet --check --cache-dir build/ruff . || status=1
      return "$status"
      ;;
    mypy)
      local programs
      programs=$(scripts/python_environment.sh lint) || return
      cd python && "$programs/mypy" --no-error-summary --cache-dir ../build/mypy tributary
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
