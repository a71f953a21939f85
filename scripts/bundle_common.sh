# shellcheck shell=bash
# Sourced by the scripts of the bundle and of the wheel: the install that both pack, and which libraries belong to the
# system that it runs on. A script that installs has a function `fail MESSAGE`, which ends it.

# glibc, which fits the kernel and its own helpers and so cannot travel; and the NVIDIA driver's, which fit the driver.
is_system_library() {
  case $1 in
    ld-linux-x86-64.so.* | libc.so.* | libm.so.* | libmvec.so.* | libpthread.so.* | libdl.so.* | librt.so.* | \
      libresolv.so.* | libutil.so.* | libanl.so.* | libnss_*.so.* | libBrokenLocale.so.* | libthread_db.so.*) return 0 ;;
    libcuda.so* | libnvidia-*.so* | libnvcuvid.so*) return 0 ;;
    *) return 1 ;;
  esac
}

# Lines "NAME PATH" for each library that the given ELF files need, themselves or through others; PATH is "missing" if the
# loader does not find it.
needed_libraries() {
  local file
  for file in "$@"; do
    env -i "$(command -v ldd)" "$file" 2>/dev/null || true
  done | sed -n -e 's/^\t\([^ ]*\) => not found.*/\1 missing/p' -e 's/^\t\([^ ]*\) => \(\/[^ ]*\) (.*/\1 \2/p' | sort -u
}

is_elf() {
  [ "$(head -c 4 "$1" 2>/dev/null | od -An -tx1 | tr -d ' \n')" = 7f454c46 ]
}

# The glibc that the ELF files in FOLDER need, as 2.31: the newest that one of them asks for.
needed_glibc() {
  local file newest
  newest=$(find "$1" -type f | while read -r file; do
    is_elf "$file" || continue
    objdump -p "$file" | sed -n 's/.* GLIBC_\(2\.[0-9]*\)$/\1/p'
  done | sort -uV | tail -n 1)
  echo "${newest:-2.0}"
}

# install_programs BUILD FOLDER LOG VERSION: the stripped install of a built tree, whose programs and libraries look next to
# themselves first, and find everything; and sbom.cdx.json, the list of the install's contents.
install_programs() {
  local build=$1 folder file rpath library path undefined
  [ -f "$build/CMakeCache.txt" ] || fail "$build is no build tree; run 'make build', or give one"
  folder=$(realpath -m "$2")
  rm -rf "$folder"
  cmake --install "$build" --prefix "$folder" --strip >"$3" 2>&1 || {
    cat "$3" >&2
    fail "the install of $build into $folder failed; what it said is above"
  }
  while read -r file; do
    is_elf "$file" || continue
    rpath=$(patchelf --print-rpath "$file")
    [ "$rpath" = '$ORIGIN/../lib' ] || fail "$file has the rpath '$rpath' instead of \$ORIGIN/../lib"
    while read -r library path; do
      is_system_library "$library" || [ "$(dirname "$(realpath -m "$path")")" = "$folder/lib" ] ||
        fail "$file needs $library, which is $path and not in $folder/lib"
    done < <(needed_libraries "$file")
    undefined=$(env -i "$(command -v ldd)" -r "$file" 2>&1 | grep -i 'undefined symbol' || true)
    [ -z "$undefined" ] || fail "$file: $undefined"
  done < <(find "$folder/bin" "$folder/lib" -type f)
  "$(dirname "${BASH_SOURCE[0]}")/write_sbom.py" "$folder" "$4" || fail "no list of what $folder contains"
}
