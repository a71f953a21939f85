#!/usr/bin/env bash
# Packs programs, libraries and the Python package of a built tree as one wheel for every Python 3.9 and newer:
# OUT/tributary-VERSION-py3-none-manylinux_G_x86_64.whl. G is the glibc that they need, 2_31 or what a tree has that was
# not built with the preset `portable`. bin/ and lib/ of the bundle (scripts/bundle_common.sh) lie in the package and
# find each other as they do there.
#
#   scripts/make_wheel.sh [BUILD [OUT]]      BUILD, a built tree: build/portable; OUT: build
#
# The last line is the path of the wheel. Packing needs the network: pip gets setuptools, with its hash.
set -euo pipefail
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)
. "$here/bundle_common.sh"

fail() {
  echo "make_wheel.sh: $*" >&2
  exit 1
}

build=$(realpath "${1:-$here/../build/portable}")
out=$(realpath -m "${2:-$here/../build}")
[ -x "$build/bin/tributary" ] || fail "$build has no bin/tributary; run 'make wheel', or give a built tree"
version=$("$build/bin/tributary" --version | cut -d' ' -f2)
said=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' "$here/../python/tributary/__init__.py")
[ "$said" = "$version" ] ||
  fail "tributary.__version__ is '$said', the programs of $build are '$version': set it as common/base/version.h has it, or build again"
mkdir -p "$out"
log=$out/wheel.log

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
install_programs "$build" "$work/programs" "$log" "$version"
glibc=$(needed_glibc "$work/programs")
glibc=$(printf '%s\n' "$glibc" 2.31 | sort -V | tail -n 1)  # there is no name between 2.28 and 2.31
platform=manylinux_${glibc/./_}_x86_64
wheel=$out/tributary-$version-py3-none-$platform.whl
rm -f "$wheel"
stage=$work/stage
mkdir "$stage"
cp -r "$here"/../python/{tributary,pyproject.toml,setup.py} "$here/../LICENSE" "$stage"
find "$stage" -name __pycache__ -prune -exec rm -rf {} +
cp -r "$work/programs"/{bin,lib} "$stage/tributary"
cp -r "$work/programs/licences" "$stage"
cp "$work/programs/sbom.cdx.json" "$stage/licences"
# The bundle is for building on the library; and a wheel has no links, so that this would be the library once more.
rm -rf "$stage"/tributary/lib/{cmake,pkgconfig,libtributary.so} "$stage"/tributary/bin/test_*
programs=$("$here/python_environment.sh" wheel) || fail "the wheel cannot be packed without setuptools"
"$programs/pip" wheel --no-deps --no-build-isolation --config-settings="--build-option=--plat-name=$platform" \
  --wheel-dir "$out" "$stage" >>"$log" 2>&1 || {
  tail -n 20 "$log" >&2
  fail "pip could not pack the wheel; $log has all that was said"
}
[ -f "$wheel" ] || fail "pip made no $wheel; $log has all that was said"
awk -v b="$(stat -c %s "$wheel")" 'BEGIN { printf "%.1f MiB\n", b / 1048576 }'
echo "$wheel"
