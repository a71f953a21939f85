#!/usr/bin/env bash
# Installs the packages of scripts/packages.txt that are missing, and of further lists. Calls apt only if dpkg says that one is.
#
#   scripts/install_packages.sh [packages_test.txt] [packages_lint.txt]
#
# From a line's alternatives it takes the first that is installed or that apt knows. On a system without dpkg and apt
# it prints the packages wanted, and fails; TRIBUTARY_PACKAGES=present says that all are there under other names.
set -euo pipefail
cd "$(dirname "$0")"
lists=(packages.txt "$@")

[ "${TRIBUTARY_PACKAGES:-}" = present ] && exit 0

# Each line's alternatives, as "NAME|NAME>=VERSION", and what they are.
wanted=()
words=()
while IFS='#' read -r alternatives what; do
  alternatives=${alternatives//[[:space:]()]/}
  [ -n "$alternatives" ] || continue
  wanted+=("$alternatives")
  words+=("${what# }")
done < <(cat -- "${lists[@]}")

# tell INDEX: prints one line with the wanted package, and the alternatives tried.
tell() {
  local tried=${wanted[$1]//|/, }
  echo "  ${words[$1]} (tried: ${tried//>=/ >= })" >&2
}

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  (
    system="an unknown system"
    # shellcheck disable=SC1091  # of the machine
    if [ -r /etc/os-release ]; then . /etc/os-release && system=${PRETTY_NAME:-$system}; fi
    echo "packages are installed with dpkg-query and apt-get, which $system has not. These are wanted, with the names that were tried:" >&2
  )
  for index in "${!wanted[@]}"; do tell "$index"; done
  echo "install them under this system's names, then try again with TRIBUTARY_PACKAGES=present in the environment" >&2
  exit 1
fi

# All names, once each.
names=()
for alternatives in "${wanted[@]}"; do
  IFS='|' read -ra several <<<"$alternatives"
  for alternative in "${several[@]}"; do names+=("${alternative%%>=*}"); done
done

# will_do ALTERNATIVE VERSION: whether there is a version, and it is new enough.
will_do() {
  [ -n "$2" ] || return 1
  case $1 in
    *'>='*) dpkg --compare-versions "$2" ge "${1#*>=}" ;;
  esac
}

declare -A installed known
while read -r name status version; do
  if [ "$status" = installed ]; then installed[$name]=$version; fi
done < <(dpkg-query -W -f='${Package} ${db:Status-Status} ${Version}\n' "${names[@]}" 2>/dev/null || true)

# choose INDEX: sets `chosen` to the package to install, or to nothing where one is installed; fails where none will do.
choose() {
  local alternative name several
  chosen=""
  IFS='|' read -ra several <<<"${wanted[$1]}"
  for alternative in "${several[@]}"; do
    name=${alternative%%>=*}
    if will_do "$alternative" "${installed[$name]:-}"; then return 0; fi
    if will_do "$alternative" "${known[$name]:-}"; then
      chosen=$name
      return 0
    fi
  done
  return 1
}

missing=()
for index in "${!wanted[@]}"; do
  choose "$index" || missing+=("$index")
done
[ ${#missing[@]} -eq 0 ] && exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "these packages are missing and neither root nor sudo is at hand; install them and try again:" >&2
    for index in "${missing[@]}"; do tell "$index"; done
    exit 1
  fi
  as_root=(sudo)
fi
"${as_root[@]}" apt-get update -qq

# Versions that apt would install.
name=""
while read -r first second _; do
  case $first in
    *:) if [ -z "$second" ]; then name=${first%:}; fi ;;&
    Candidate:) if [ "$second" != '(none)' ]; then known[$name]=$second; fi ;;
  esac
done < <(LC_ALL=C apt-cache policy "${names[@]}")

packages=()
nowhere=()
for index in "${missing[@]}"; do
  if choose "$index"; then packages+=("$chosen"); else nowhere+=("$index"); fi
done
if [ ${#nowhere[@]} -ne 0 ]; then
  echo "apt knows no package for these, with the names that were tried:" >&2
  for index in "${nowhere[@]}"; do tell "$index"; done
  echo "add their names on this system to the lines of scripts/packages.txt or packages_test.txt; or install all that these ask for" \
    "yourself, and try again with TRIBUTARY_PACKAGES=present in the environment" >&2
  exit 1
fi

echo "installing: ${packages[*]}"
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}"
