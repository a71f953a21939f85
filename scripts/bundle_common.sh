# shellcheck shell=bash
# Sourced by the scripts of the bundle: which libraries belong to the system that it runs on.

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
