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

mkdir -p "$lib"
# The programs' own needs, then those of the libraries found.
declare -A seen=()
queue=("$@")
while [ ${#queue[@]} -gt 0 ]; do
  file=${queue[0]}
  queue=("${queue[@]:1}")
  direct=" $(patchelf --print-needed "$file" | tr '\n' ' ')"
  while read -r name path; do
    case $direct in *" $name "*) ;; *) continue ;; esac
    if is_system_library "$name" || [ -n "${seen[$name]:-}" ]; then continue; fi
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
  strip --strip-unneeded "$lib/$name"
  patchelf --force-rpath --set-rpath '$ORIGIN/../lib' "$lib/$name"
  copy_licence "${seen[$name]}"
done
