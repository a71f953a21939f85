#!/usr/bin/env bash
# Packs programs, libraries and the Python package of a built tree as one wheel for every Python 3.9 and newer:
# OUT/tributary-VERSION-py3-none-manylinux_G_x86_64.whl, G being this machine's glibc. What is packed is the bundle
# (scripts/make_bundle.sh), beside the package's files: bin/ and lib/ find each other as they do there.
#
#   scripts/make_wheel.sh [BUILD [OUT]]      BUILD, a built tree: build/release; OUT: build
#
# The last line is the path of the wheel.
set -euo pipefail
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)
build=$(realpath "${1:-$here/../build/release}")
out=$(realpath -m "${2:-$here/../build}")
mkdir -p "$out"

"$here/make_bundle.sh" "$build" "$out" >"$out/wheel.log"
version=$("$build/bin/tributary" --version | cut -d' ' -f2)
glibc=$(getconf GNU_LIBC_VERSION | cut -d' ' -f2 | tr . _)
stage=$out/wheel
rm -rf "$stage" "$out"/tributary-*.whl
mkdir -p "$stage"
cp -r "$here/../python/tributary" "$here/../python/pyproject.toml" "$here/../LICENSE" "$stage"
find "$stage" -name __pycache__ -prune -exec rm -rf {} +
cp -r "$out/tributary-$version/bin" "$out/tributary-$version/lib" "$stage/tributary"
# For those who build on it there is the bundle; and a wheel has no links, so that this would be the library once more.
rm -rf "$stage"/tributary/lib/{cmake,pkgconfig,libtributary.so} "$stage"/tributary/bin/test_*
sed -i "s/^version = .*/version = \"$version\"/" "$stage/pyproject.toml"
python3 -m pip wheel --no-deps --config-settings="--build-option=--plat-name=manylinux_${glibc}_x86_64" \
  --wheel-dir "$out" "$stage" >>"$out/wheel.log" 2>&1 || {
  tail -n 20 "$out/wheel.log" >&2
  echo "make_wheel.sh: pip could not pack $stage; $out/wheel.log has all that was said" >&2
  exit 1
}
rm -rf "$stage"
wheel=$(find "$out" -maxdepth 1 -name 'tributary-*.whl')
awk -v b="$(stat -c %s "$wheel")" 'BEGIN { printf "%.1f MiB\n", b / 1048576 }'
echo "$wheel"
