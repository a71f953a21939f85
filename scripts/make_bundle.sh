#!/usr/bin/env bash
# Packs the relocatable install: OUT/tributary-VERSION/ and OUT/tributary-VERSION-linux-x86_64.tar.gz. Fails if the archive
# is not smaller than 28 MiB (it is what is carried) or the folder than 64 MiB, or if a program or library in it would look for another one elsewhere.
#
#   scripts/make_bundle.sh [BUILD [OUT]]      BUILD, a built tree: build/portable; OUT: build
#
# The last line is the path of the archive.
set -euo pipefail
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)
. "$here/bundle_common.sh"
build=${1:-$here/../build/portable}
out=${2:-$here/../build}
packed_limit=$((28 << 20))
unpacked_limit=$((64 << 20))

fail() {
  echo "make_bundle.sh: $*" >&2
  exit 1
}

[ -x "$build/bin/tributary" ] || fail "$build has no bin/tributary; run 'make bundle', or give a built tree"
mkdir -p "$out"
version=$("$build/bin/tributary" --version | cut -d' ' -f2)
name=tributary-$version
folder=$out/$name
archive=$out/$name-linux-x86_64.tar.gz
rm -f "$archive"
install_programs "$build" "$folder" "$out/install.log" "$version"

tar -C "$out" --sort=name --owner=0 --group=0 --numeric-owner -cf - "$name" | gzip -9 >"$archive"
unpacked=$(du -sb "$folder" | cut -f1)
packed=$(stat -c %s "$archive")
awk -v u="$unpacked" -v p="$packed" -v g="$(needed_glibc "$folder")" \
  'BEGIN { printf "%.1f MiB unpacked, %.1f MiB packed, for glibc %s and newer\n", u / 1048576, p / 1048576, g }'
if [ "$unpacked" -ge $unpacked_limit ] || [ "$packed" -ge $packed_limit ]; then
  du -a "$folder" | sort -rn | head -n 15 >&2
  fail "the bundle must stay below 28 MiB packed and 64 MiB unpacked; the largest parts are listed above"
fi
realpath "$archive"
