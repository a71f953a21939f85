#!/usr/bin/env bash
# Gets what programs for older Linux systems are linked with (cmake/TributaryPortable.cmake), into FOLDER:
#
#   root/          glibc 2.31 to link against: Debian 11's
#   lib/           archives of the C++ libraries of which Debian 12 has none that fits (packaging/portable/CMakeLists.txt)
#   gloo/          the headers of the Gloo that is in lib/
#   licences/      of all that is linked in
#   link_options   for the compiler, one a line
#
#   scripts/portable_parts.sh FOLDER       prints the folder
#
# Sources and packages come from this machine's Debian mirror, and Gloo's from PyPI. If the mirror has Debian 11 no more,
# TRIBUTARY_OLD_DEBIAN_MIRROR names another. Two minutes on two cores, then it is kept. Exit status 3: something cannot be
# fetched, or this is not Debian 12.
set -euo pipefail
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)
[ $# -eq 1 ] || {
  echo "usage: scripts/portable_parts.sh FOLDER" >&2
  exit 2
}
mkdir -p "$1"
folder=$(cd "$1" && pwd)
log=$folder/log

fail() {
  echo "portable_parts.sh: $*" >&2
  exit 1
}

unreachable() {
  echo "portable_parts.sh: $*" >&2
  exit 3
}

old_release=bullseye
multiarch=$(gcc -print-multiarch)  # name of Debian's folders for this processor
old_packages=(libc6 libc6-dev libgcc-10-dev)
# Source package, and the package of this machine whose release it must have.
sources=(zeromq3:libzmq3-dev capnproto:libcapnp-dev prometheus-cpp:prometheus-cpp-dev spdlog:libspdlog-dev
  fmtlib:libfmt-dev)
# The same transport and collectives as Debian 12's Gloo: the same bytes on the wire, the same order of additions. Debian's
# own source is not used, because not every mirror has it.
gloo=horovod==0.28.1
gloo_hash=sha256:92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0
# Packages that are linked in, or compiled in from headers.
licensed=(libzmq3-dev libcapnp-dev prometheus-cpp-dev libspdlog-dev libfmt-dev libgloo-dev librocksdb-dev libgflags-dev
  libsnappy-dev zlib1g-dev libbz2-dev liblz4-dev libzstd-dev libsodium-dev libxxhash-dev libstdc++-12-dev)

# shellcheck disable=SC1091  # of the machine
system=$(. /etc/os-release && echo "$ID ${VERSION_ID:-}")
[ "$system" = "debian 12" ] ||
  unreachable "the wheel and the bundle are linked on Debian 12, whose archives they are made of; this is $system"

packages=("${sources[@]#*:}" "${licensed[@]}")
versions=$(dpkg-query -W -f '${Package} ${source:Version}\n' "${packages[@]}" 2>"$log" | sort -u) ||
  fail "not all packages are installed; run scripts/install_packages.sh: $(head -n 3 "$log")"
wanted=$(
  echo "$versions"
  cat "$0" "$here"/../packaging/portable/*
)
wanted="$folder $(sha256sum <<<"$wanted")"
exec 9>"$folder/lock"
flock 9  # two builds may want them at once
if [ "$(cat "$folder/complete" 2>/dev/null)" = "$wanted" ]; then
  echo "$folder"
  exit 0
fi
find "$folder" -mindepth 1 -maxdepth 1 ! -name lock -exec rm -rf {} +

# A configuration of apt next to the machine's, with the machine's mirror.
codename=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
debian_archives() {  # lines "URI SUITE"; apt names only those of which it has lists
  # shellcheck disable=SC2016
  apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' 2>/dev/null |
    awk -v name="$codename" '$2 == name || index($2, name "-") == 1' | sort -u
}
mapfile -t archives < <(debian_archives)
if [ ${#archives[@]} -eq 0 ]; then
  as_root=()
  [ "$(id -u)" -eq 0 ] || as_root=(sudo)
  "${as_root[@]}" apt-get update -qq >"$log" 2>&1 || unreachable "apt-get update fails: $(tail -n 1 "$log")"
  mapfile -t archives < <(debian_archives)
fi
mirror=${TRIBUTARY_OLD_DEBIAN_MIRROR:-$(printf '%s\n' "${archives[@]}" | awk -v name="$codename" '$2 == name { print $1; exit }')}
[ -n "$mirror" ] || fail "apt knows no mirror of Debian's $codename; have one in /etc/apt, or give TRIBUTARY_OLD_DEBIAN_MIRROR"
keys=/usr/share/keyrings/debian-archive-keyring.gpg
trust=
[ ! -f "$keys" ] || trust="[signed-by=$keys] "
mkdir -p "$folder"/apt/lists/partial "$folder"/apt/cache/archives/partial "$folder"/{packages,sources,root,lib,licences}
{
  echo "deb $trust$mirror $old_release main"
  for archive in "${archives[@]}"; do echo "deb-src $trust$archive main"; done
} >"$folder/apt/sources.list"
own_apt() {
  apt-get -o Dir::Etc::sourcelist="$folder/apt/sources.list" -o Dir::Etc::sourceparts=- -o Dir::State="$folder/apt" \
    -o Dir::State::lists="$folder/apt/lists" -o Dir::Cache="$folder/apt/cache" -o Dir::State::status=/dev/null \
    -o APT::Sandbox::User="$(id -un)" -o Acquire::Languages=none -o Acquire::Retries=3 \
    -o APT::Update::Error-Mode=any "$@" >>"$log" 2>&1
}
quoted_log() {
  grep -E '^(E|W|ERROR)[: ]' "$log" | tail -n 2 | paste -sd' '
}
: >"$log"
own_apt update || unreachable "no lists of the packages of Debian's $old_release and $codename from $mirror;" \
  "TRIBUTARY_OLD_DEBIAN_MIRROR names another mirror: $(quoted_log)"
cd "$folder/packages"
own_apt download "${old_packages[@]}" ||
  unreachable "no packages of Debian's $old_release from $mirror: $(quoted_log)"
for source in "${sources[@]}"; do
  name=${source%%:*}
  version=$(awk -v package="${source#*:}" '$1 == package { print $2 }' <<<"$versions")
  own_apt source --download-only "$name=$version" || unreachable "no source of $name $version: $(quoted_log)"
  dpkg-source --no-check -x "${name}"_*.dsc "$folder/sources/$name" >>"$log" 2>&1 || fail "cannot unpack $name; see $log"
done
echo "$gloo --hash=$gloo_hash" >gloo.txt
python3 -m pip download --quiet --no-deps --no-binary :all: --require-hashes -r gloo.txt --dest . >>"$log" 2>&1 ||
  unreachable "pip cannot get $gloo, which has the source of Gloo: $(quoted_log)"
mkdir gloo
tar -xzf horovod-*.tar.gz -C gloo --strip-components=1
mv gloo/third_party/gloo "$folder/sources/gloo"
for package in "${licensed[@]}"; do
  cp "/usr/share/doc/$package/copyright" "$folder/licences/$package"
done

# Only what a link needs; and links of the sysroot that stay in it.
for package in *.deb; do dpkg -x "$package" "$folder/sysroot"; done
while read -r link; do
  ln -sfnr "$folder/sysroot$(readlink "$link")" "$link"
done < <(find "$folder/sysroot" -type l -lname '/*')
# GCC 12's own archive of the unwinder asks glibc 2.35 where code is; this one asks as glibc has always answered.
cp "$folder/sysroot/usr/lib/gcc/$multiarch/10/libgcc_eh.a" "$folder/lib"
(cd "$folder/sysroot" && rm -rf etc usr/bin usr/include usr/lib/gcc usr/share)

{
  cmake -G Ninja -S "$here/../packaging/portable" -B "$folder/build" -Wno-dev -DCMAKE_BUILD_TYPE=Release \
    -DSOURCES="$folder/sources" && cmake --build "$folder/build" --target all_parts
} >>"$log" 2>&1 || {
  tail -n 20 "$log" >&2
  fail "the archives cannot be built; $log has all that was said"
}
mv "$folder"/build/lib/*.a "$folder/lib"
mkdir "$folder/gloo"
(cd "$folder/sources/gloo" && find gloo -name '*.h' -exec cp --parents {} "$folder/gloo" \;)
cp "$folder/build/gloo/gloo/config.h" "$folder/gloo/gloo"
cp "$(gcc -print-file-name=libkj.a)" "$folder/lib/libkj.a"
(
  cd "$folder/build"
  ar x "$folder/lib/libkj_exception.a"
  ar d "$folder/lib/libkj.a" exception.o
  ar r "$folder/lib/libkj.a" exception.c++.o
  ar x "$folder/lib/libold_glibc.a"
  mv old_glibc.c.o "$folder/lib/old_glibc.o"
) >>"$log" 2>&1
(cd "$folder" && rm -rf lib/libkj_exception.a lib/libold_glibc.a apt packages sources build)

# The sysroot's folders are named because the compiler looks in this machine's own before.
cat >"$folder/link_options" <<OPTIONS
--sysroot=$folder/sysroot
-B$folder/sysroot/usr/lib/$multiarch
-L$folder/lib
-L$folder/sysroot/usr/lib/$multiarch
-L$folder/sysroot/lib/$multiarch
-static-libstdc++
-static-libgcc
-Wl,--exclude-libs,libstdc++.a:libgcc.a:libgcc_eh.a
$folder/lib/old_glibc.o
OPTIONS
echo "$wanted" >"$folder/complete"
echo "$folder"
