#!/usr/bin/env bash
# Packs the Debian package of a built tree (cmake/TributaryPackage.cmake): OUT/tributary_VERSION_ARCHITECTURE.deb. The
# preset `portable` gives a package for Debian 11, Ubuntu 20.04 and newer; another preset, for this machine's release.
#
#   scripts/make_deb.sh [BUILD [OUT]]      BUILD, a built tree: build/portable; OUT: build
#
# The last line is the path of the package.
set -euo pipefail
export LC_ALL=C
umask 022
here=$(cd "$(dirname "$0")" && pwd)

fail() {
  echo "make_deb.sh: $*" >&2
  exit 1
}

build=$(realpath "${1:-$here/../build/portable}")
out=$(realpath -m "${2:-$here/../build}")
[ -x "$build/bin/tributary" ] || fail "$build has no bin/tributary; run 'make deb', or give a built tree"
[ -f "$build/CPackConfig.cmake" ] ||
  fail "$build has code for GPUs and needs CUDA's run time, which no Debian package has; run 'make deb', whose build has it inside"
version=$("$build/bin/tributary" --version | cut -d' ' -f2)
package=$out/tributary_${version}_$(dpkg --print-architecture).deb
mkdir -p "$out"
rm -f "$package"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cpack --config "$build/CPackConfig.cmake" -B "$work" >"$out/deb.log" 2>&1 || {
  cat "$out/deb.log" >&2
  fail "cpack failed; what it said is above"
}
mv "$work/${package##*/}" "$package"
awk -v b="$(stat -c %s "$package")" 'BEGIN { printf "%.1f MiB\n", b / 1048576 }'
echo "$package"
