#!/usr/bin/env bash
# Makes a wheel of a built tree, installs it into an empty environment, and uses what it brings.
#
#   scripts/test_wheel.sh BUILD [PYTHON...]            each PYTHON gets an environment of its own; without one, python3
#   scripts/test_wheel.sh --old-system BUILD [ROOT]    in Debian 11, which is installed into ROOT if it is not there: glibc
#                                                      2.31 and Python 3.9; and what auditwheel says of the wheel
#
# A wheel of a tree of the preset `portable` must be for glibc 2.31. Without root, or the network, the old system is
# skipped. If debootstrap's mirror has Debian 11 no more, TRIBUTARY_OLD_DEBIAN_MIRROR names another.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
old_system=
[ "${1:-}" != --old-system ] || {
  old_system=1
  shift
}
build=$(realpath "$1")
shift
unset PYTHONPATH TRIBUTARY_LIBRARY
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

fail() {
  echo "test_wheel.sh: $*" >&2
  exit 1
}

skip() {
  echo "skipped: $*"
  exit 0
}

if [ -n "$old_system" ]; then
  root=$(realpath -m "${1:-$here/../build/debian-11}")
  [ "$(id -u)" = 0 ] || skip "the old system is a root of its own, which only root may enter"
  unshare --mount --pid --fork true 2>/dev/null || skip "the old system needs namespaces of its own, which this user may not have"
  command -v debootstrap >/dev/null || skip "debootstrap is not installed; run scripts/install_packages.sh packages_test.txt"
fi

"$here/make_wheel.sh" "$build" "$folder/out"
wheel=$(find "$folder/out" -name '*-py3-none-manylinux_*_x86_64.whl')
[ -f "$wheel" ] || fail "the wheel has other tags than py3-none-manylinux_*_x86_64: $(ls "$folder/out")"
if grep -q '^TRIBUTARY_PORTABLE:BOOL=ON$' "$build/CMakeCache.txt"; then
  case $wheel in
    *-manylinux_2_31_x86_64.whl) ;;
    *) fail "$build is portable, but its wheel is $(basename "$wheel") and not for manylinux_2_31" ;;
  esac
elif [ -n "$old_system" ]; then
  fail "$build is not for old systems; give a tree of the preset portable"
fi

cat >"$folder/look.py" <<'PYTHON'
import importlib.metadata
from pathlib import Path

import tributary
from tributary import _library as trib

release = tributary.load().version()
about = importlib.metadata.distribution("tributary")
assert release == tributary.__version__ == about.version, (release, tributary.__version__, about.version)
assert "Root-Is-Purelib: false" in about.read_text("WHEEL"), about.read_text("WHEEL")
files = [str(file) for file in about.files]
for wanted in ("licenses/LICENSE", "licenses/licences/libzmq", "licenses/licences/sbom.cdx.json"):
    assert any(wanted in file for file in files), f"no {wanted} in {files}"
package = str(Path(tributary.__file__).resolve().parent)
loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if ".so" in line}
assert f"{package}/lib/libtributary.so.1" in loaded, loaded
assert f"{package}/lib/libstdc++.so.6" not in loaded, "the wheel's C++ run time is loaded in place of the system's"
# The library catches its own exceptions, whatever C++ run time the process has.
options = trib.AttachOptions(job="[job", tensors=[trib.Tensor("w", (3,))], socket="/nowhere")
try:
    tributary.load().attach(options)
except tributary.Error as error:
    print("caught:", error)
else:
    raise AssertionError("an attach with a job that is no TOML")
try:
    import tributary.torch
except ImportError as error:
    assert "needs torch 2.1 or newer" in str(error), error
else:
    raise AssertionError("tributary.torch without torch")
print("tributary", release, "in", package)
PYTHON
cat >"$folder/trainer.py" <<'PYTHON'
from tributary import _library as trib

options = trib.AttachOptions(
    job='job.name = "wheel"\n[optimizer]\nname = "sgd"\nlr = 0.5\n', tensors=[trib.Tensor("w", (3,))]
)
session = trib.load().attach(options)
view = session.view()
if view.fresh and view.rank == 0:
    for i in range(3):
        session.initial(0)[i] = 8.0
session.start()
for _ in range(3):
    gradient, now = session.gradient(0), list(session.parameters(0))
    for i in range(3):
        gradient[i] = now[i]
    session.ready(0, 1, 0.5)
    session.wait()
print("parameters", list(session.parameters(0)), flush=True)
session.finish(trib.Leave.FINISHED)
session.saved()
session.destroy()
PYTHON

cat >"$folder/use.sh" <<'SHELL'
# use.sh FOLDER PYTHON: the wheel in FOLDER in a new environment in FOLDER, with PATH as if it were activated.
set -euo pipefail
fail() {
  echo "test_wheel.sh: $*" >&2
  exit 1
}
environment=$1/environment
"$2" -m venv "$environment"
"$environment/bin/pip" install --quiet --no-index --no-deps "$1"/*.whl
export PATH=$environment/bin:$PATH
cd "$1"
python --version
python look.py
release=$(python -c 'import tributary; print(tributary.__version__)')
for program in tributary tributary-server tributary-worker tributary-train; do
  [ "$(command -v $program)" = "$environment/bin/$program" ] || fail "$program is not in $environment/bin"
  [ "$($program --version)" = "$program $release" ] || fail "$program --version says '$($program --version)'"
done
tributary plan --nodes 4 --bandwidth 1Gbit/s --payload 64MB >planned || fail "tributary plan, which is another program's, ends with $?"
tributary doctor >looked || [ $? = 1 ] || fail "tributary doctor ends with another status than 0 and 1" # a note or a problem of this machine
cat looked
grep -q "ok  *programs .* are in .*/tributary/bin" looked || fail "doctor does not find the daemons of the wheel"
timeout 120 tributary run --nodes 2 --base-dir "$1/run" -- python "$1/trainer.py" | tee said
grep -q "parameters \[1.0, 1.0, 1.0\]" said || fail "the job did not end with parameters 1.0; its lines are above"
SHELL

# put FOLDER: all that use.sh takes.
put() {
  mkdir -p "$1"
  cp "$wheel" "$folder"/{use.sh,look.py,trainer.py} "$1"
}

if [ -z "$old_system" ]; then
  [ $# -gt 0 ] || set -- python3
  number=0
  for python; do
    number=$((number + 1))
    put "$folder/$number"
    bash "$folder/$number/use.sh" "$folder/$number" "$python"
  done
  exit 0
fi

python3 -m venv "$folder/audit"
"$folder/audit/bin/pip" install --quiet auditwheel >"$folder/pip.log" 2>&1 ||
  skip "pip cannot get auditwheel: $(tail -n 1 "$folder/pip.log")"
"$folder/audit/bin/auditwheel" show "$wheel" | tee "$folder/audit.log"
tag=manylinux_2_31_x86_64
tr '\n' ' ' <"$folder/audit.log" | grep -q "consistent with the following platform tag: \"$tag\"" ||
  fail "auditwheel does not find the wheel fit for $tag; what it says is above"

if [ ! -f "$root/complete" ]; then
  echo "installing Debian 11 into $root, two minutes"
  rm -rf "$root"
  mkdir -p "$root"
  debootstrap --variant=minbase --include=python3,python3-venv,python3-pip bullseye "$root" \
    ${TRIBUTARY_OLD_DEBIAN_MIRROR:+"$TRIBUTARY_OLD_DEBIAN_MIRROR"} >"$folder/debootstrap.log" 2>&1 ||
    skip "debootstrap cannot install Debian 11: $(tail -n 1 "$folder/debootstrap.log")"
  rm -rf "$root"/var/cache/apt/archives/*.deb
  touch "$root/complete"
fi
inside=/tmp/wheel
rm -rf "${root:?}$inside"
put "$root$inside"
# shellcheck disable=SC2016
unshare --mount --pid --fork --kill-child sh -c 'mount -t proc proc "$1/proc" && mount -t tmpfs tmpfs "$1/dev/shm" &&
  exec chroot "$1" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 bash -euc "
    getconf GNU_LIBC_VERSION
    bash $2/use.sh $2 python3"' sh "$root" "$inside" | tee "$folder/said" || fail "the wheel does not work in Debian 11 ($root)"
grep -q '^glibc 2\.31$' "$folder/said" || fail "$root is not Debian 11; remove it, and it is installed again"
rm -rf "${root:?}$inside"
