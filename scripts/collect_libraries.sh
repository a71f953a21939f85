#!/usr/bin/env bash
# Makes an install relocatable: copies the shared libraries that its programs need into PREFIX/lib, with an rpath of
# their own. Called by `cmake --install`.
#
#   scripts/collect_libraries.sh PREFIX PROGRAM...        programs of the build tree, which find the system's libraries
set -euo pipefail
export LC_ALL=C
. "$(dirname "$0")/bundle_common.sh"

prefix=$1
shift
lib=$prefix/lib
command -v patchelf >/dev/null || {
  echo "collect_libraries.sh: patchelf is not installed; run scripts/install_packages.sh" >&2
  exit 1
}

# OpenBLAS is 36 MB, two fifths of it LAPACK and Fortran's run time, which nothing here calls. The archive next to the
# library holds the same objects: linked again with only the functions that the programs call, it keeps its kernels for
# every kind of CPU, and the same bits.
link_small_openblas() {
  local whole=$1 out=$2 archive work wanted
  shift 2
  archive=$(dirname "$(readlink -f "$whole")")/libopenblas.a
  [ -f "$archive" ] || return 1
  work=$(mktemp -d)
  mapfile -t wanted < <(comm -12 <(nm -D --undefined-only --format=just-symbols "$@" | grep -E '^[A-Za-z_]' | sed 's/@.*//' | sort -u) \
    <(nm -D --defined-only --format=just-symbols "$whole" | sed 's/@.*//' | sort -u))
  {
    echo 'OPENBLAS { global:'
    printf '%s;\n' "${wanted[@]}"
    echo 'local: *; };'
  } >"$work/map"
  cc -shared -o "$out" -Wl,-soname,libopenblas.so.0 -Wl,--version-script="$work/map" -Wl,--gc-sections \
    -Wl,-z,noexecstack -Wl,-z,defs "${wanted[@]/#/-Wl,-u,}" "$archive" -lpthread -lm
  rm -r "$work"
}

# The licence of the package that a library comes from, where dpkg knows it.
copy_licence() {
  local path=$1 package file
  for file in "$path" "$(readlink -f "$path")" "/usr$(readlink -f "$path")"; do
    package=$(dpkg-query -S "$file" 2>/dev/null | head -n 1 | cut -d: -f1) || true
    [ -z "$package" ] || break
  done
  if [ -n "$package" ] && [ -f "/usr/share/doc/$package/copyright" ]; then
    install -D -m 644 "/usr/share/doc/$package/copyright" "$prefix/licences/$package"
  fi
}

finish_library() {
  strip --strip-unneeded "$lib/$1"
  patchelf --force-rpath --set-rpath '$ORIGIN/../lib' "$lib/$1"
}

mkdir -p "$lib"
# First OpenBLAS, because Fortran's libraries are needed only if it must be copied whole.
openblas=$(needed_libraries "$@" | sed -n 's/^libopenblas\.so\.0 //p')
programs=("$@")
skip=
if [ -n "$openblas" ] && link_small_openblas "$openblas" "$lib/libopenblas.so.0" "${programs[@]}"; then
  finish_library libopenblas.so.0
  copy_licence "$openblas"
  skip=libopenblas.so.0
fi

# Libraries that the programs need, then those that these need; dependencies of the rebuilt one are not followed.
declare -A seen=()
queue=("${programs[@]}")
while [ ${#queue[@]} -gt 0 ]; do
  file=${queue[0]}
  queue=("${queue[@]:1}")
  direct=" $(patchelf --print-needed "$file" | tr '\n' ' ')"
  while read -r name path; do
    case $direct in *" $name "*) ;; *) continue ;; esac
    if is_system_library "$name" || [ "$name" = "$skip" ] || [ -n "${seen[$name]:-}" ]; then continue; fi
    if [ "$path" = missing ]; then
      echo "collect_libraries.sh: $file needs $name, which is not on this machine" >&2
      exit 1
    fi
    seen[$name]=$path
    queue+=("$path")
  done < <(needed_libraries "$file")
done
for name in "${!seen[@]}"; do
  install -m 644 "${seen[$name]}" "$lib/$name"
  finish_library "$name"
  copy_licence "${seen[$name]}"
done
