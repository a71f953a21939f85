#!/usr/bin/env bash
# Prometheus's own checker of metrics and rules: that of the machine, or else out of Debian's package, promtool or, in Debian 12,
# prometheus, of which nothing is installed (it would bring a service that runs).
#
#   scripts/fetch_promtool.sh FOLDER       puts it into FOLDER if need be, and prints its path
set -euo pipefail
command -v promtool && exit 0
mkdir -p "$1"
folder=$(cd "$1" && pwd)
if [ ! -x "$folder/promtool" ]; then
  package=$(mktemp -d)
  trap 'rm -rf "$package"' EXIT
  cd "$package"
  download() { apt-get download promtool || apt-get download prometheus; }
  if ! download >log 2>&1; then
    as_root=()
    [ "$(id -u)" -eq 0 ] || as_root=(sudo)
    if ! { "${as_root[@]}" apt-get update -qq && download; } >log 2>&1; then
      tail -n 20 log >&2
      echo "fetch_promtool.sh: cannot get Debian's package promtool or prometheus; have promtool on PATH instead" >&2
      exit 1
    fi
  fi
  dpkg -x pro*.deb files
  mv files/usr/bin/promtool "$folder/promtool"
fi
echo "$folder/promtool"
