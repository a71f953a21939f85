#!/usr/bin/env bash
# Starts a bundle where there is nothing else: a root folder with the unpacked archive, the files of this system's glibc
# and a data set. Runs every program's --version and --help, and `tributary up` to the end of a small job.
#
#   scripts/check_bundle.sh ARCHIVE DATA_DIR [MODE]       DATA_DIR: IDX files as Fashion-MNIST has them
#
# MODE (without it, the first that this user may use; the last lines say which one ran):
#   namespaces   chroot in namespaces of its own, with /proc and /dev/null
#   chroot       chroot alone (root without the right to mount)
#   plain        no chroot: the unpacked folder with an empty environment. Libraries are checked in every mode.
set -euo pipefail
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)
. "$here/bundle_common.sh"
archive=$1
data=$2
mode=${3:-}
limit_s=120

fail() {
  echo "check_bundle.sh: $*" >&2
  exit 1
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$root"/{opt,proc,dev/shm,tmp,data,training}
chmod 1777 "$root/tmp" "$root/dev/shm"
tar -C "$root/opt" -xzf "$archive"
cp "$data"/* "$root/data/"
bundle=$(cd "$root"/opt/*/ && pwd)
inside=${bundle#"$root"}

# Libraries: those of the bundle from the bundle, the others from glibc; and these are all that the root gets.
while read -r file; do
  is_elf "$file" || continue
  while read -r name path; do
    if is_system_library "$name"; then
      [ -f "$path" ] || fail "$file needs $name, which this system does not have"
      mkdir -p "$root$(dirname "$path")"
      cp -Lu "$path" "$root$path"
    elif [ "$(dirname "$(realpath -m "$path")")" != "$bundle/lib" ]; then
      fail "$file needs $name, which is $path and not in the bundle"
    fi
  done < <(needed_libraries "$file")
done < <(find "$bundle/bin" "$bundle/lib" -type f)
interpreter=$(patchelf --print-interpreter "$bundle/bin/tributary")
mkdir -p "$root$(dirname "$interpreter")"
cp -L "$interpreter" "$root$interpreter"
echo "libraries: $(find "$bundle/lib" -type f | wc -l) in the bundle, the others are glibc's"

# Programs of ours are hardened: relocations are read-only once a program runs, and programs are position-independent.
for file in "$bundle"/bin/* "$bundle"/lib/libtributary.so.*; do
  is_elf "$file" || continue
  headers=$(readelf --wide --program-headers --dynamic "$file")
  grep -q GNU_RELRO <<<"$headers" || fail "$file has relocations that can be written to (-z relro)"
  grep -qE 'BIND_NOW|Flags:.*NOW' <<<"$headers" || fail "$file resolves functions while it runs (-z now)"
  case $file in
    */bin/*) grep -qE 'Flags:.*PIE' <<<"$headers" || fail "$file is not position-independent (-pie)" ;;
  esac
done

may_unshare() {
  "$@" --mount --pid --fork true 2>/dev/null
}
if [ -z "$mode" ]; then
  if { [ "$(id -u)" = 0 ] && may_unshare unshare; } || may_unshare unshare --user --map-root-user; then
    mode=namespaces
  elif [ "$(id -u)" = 0 ]; then
    mode=chroot
  else
    mode=plain
  fi
fi

at=          # what the root is called for the program
run=()       # how a program is started; its path under the root follows
case $mode in
  namespaces)
    touch "$root/dev/null"
    own=(unshare --mount --pid --fork --kill-child)
    if [ "$(id -u)" != 0 ]; then own+=(--user --map-root-user); fi
    # shellcheck disable=SC2016
    run=("${own[@]}" sh -c 'mount -t proc proc "$1/proc" && mount --bind /dev/null "$1/dev/null" && shift &&
      exec env -i "$@"' sh "$root" "$(command -v chroot)" "$root")
    ;;
  chroot)
    mknod -m 666 "$root/dev/null" c 1 3 2>/dev/null || touch "$root/dev/null"
    mkdir "$root/proc/self"
    ln -s "$inside/bin/tributary" "$root/proc/self/exe" # a program reads it to find those next to it
    run=(env -i "$(command -v chroot)" "$root")
    ;;
  plain)
    at=$root
    run=(env -i)
    ;;
  *) fail "unknown mode '$mode': give namespaces, chroot or plain" ;;
esac

for program in "$bundle"/bin/*; do
  name=$(basename "$program")
  for flag in --version --help; do
    timeout "$limit_s" "${run[@]}" "$at$inside/bin/$name" $flag >"$work/out" 2>&1 </dev/null ||
      fail "$name $flag exits with $?: $(cat "$work/out")"
    [ -s "$work/out" ] || fail "$name $flag prints nothing"
  done
  echo "$name: --version and --help"
done

timeout "$limit_s" "${run[@]}" "$at$inside/bin/tributary" up "$at$inside/configs/fashion-mnist.toml" --json --fresh \
  --servers 2 --nodes 2 --ranks-per-node 1 --base-dir "$at/training/run" --set "train.data_dir=$at/data" \
  --set "train.hidden=[32]" --set train.global_batch=64 --set train.max_rounds=30 \
  >"$work/summary" 2>"$work/log" </dev/null || {
  cat "$work/log" >&2
  find "$root/training" -name '*.log' -exec tail -n 5 {} + >&2 || true
  fail "tributary up failed in mode $mode"
}
if ! grep -q '"completed":true' "$work/summary" || ! grep -q '"last_round":30' "$work/summary"; then
  fail "tributary up did not complete its job: $(cat "$work/summary")"
fi
echo "tributary up: 30 rounds on 2 servers and 2 nodes, $(grep -o '"digest":"[^"]*"' "$work/summary")"
case $mode in
  namespaces) echo "mode namespaces: chroot with /proc, nothing in it but the bundle, glibc and the data set" ;;
  chroot) echo "mode chroot: nothing in it but the bundle, glibc and the data set; no right to mount /proc" ;;
  plain) echo "mode plain: no right to chroot; an empty environment, and every library was found in the bundle" ;;
esac
