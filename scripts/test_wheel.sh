#!/usr/bin/env bash
# Makes a wheel of a built tree, installs it into an empty environment, and uses what it brings.
#
#   scripts/test_wheel.sh BUILD [PYTHON...]      each PYTHON gets an environment of its own; without one, python3
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$(realpath "$1")
shift
[ $# -gt 0 ] || set -- python3
unset PYTHONPATH TRIBUTARY_LIBRARY
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

fail() {
  echo "test_wheel.sh: $*" >&2
  exit 1
}

"$here/make_wheel.sh" "$build" "$folder/out"
wheel=$(find "$folder/out" -name '*-py3-none-manylinux_*_x86_64.whl')
[ -f "$wheel" ] || fail "the wheel has other tags than py3-none-manylinux_*_x86_64: $(ls "$folder/out")"

cat >"$folder/look.py" <<'PYTHON'
import importlib.metadata
from pathlib import Path

import tributary

release = tributary.load().version()
about = importlib.metadata.distribution("tributary")
assert release == tributary.__version__ == about.version, (release, tributary.__version__, about.version)
assert "Root-Is-Purelib: false" in about.read_text("WHEEL"), about.read_text("WHEEL")
files = [str(file) for file in about.files]
for wanted in ("licenses/LICENSE", "licenses/licences/libzmq5"):
    assert any(file.endswith(wanted) for file in files), f"no {wanted} in {files}"
package = str(Path(tributary.__file__).resolve().parent)
loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if ".so" in line}
assert f"{package}/lib/libtributary.so.1" in loaded, loaded
assert f"{package}/lib/libstdc++.so.6" not in loaded, "the wheel's C++ run time is loaded in place of the system's"
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

# In a subshell: with PATH as in an activated environment.
use() (
  environment=$1/environment
  "$2" -m venv "$environment"
  "$environment/bin/pip" install --quiet --no-index --no-deps "$wheel"
  export PATH=$environment/bin:$PATH
  cd "$1"
  python --version
  python "$folder/look.py"
  release=$(python -c 'import tributary; print(tributary.__version__)')
  for program in tributary tributary-server tributary-worker tributary-train; do
    [ "$(command -v $program)" = "$environment/bin/$program" ] || fail "$program is not in $environment/bin"
    [ "$($program --version)" = "$program $release" ] || fail "$program --version says '$($program --version)'"
  done
  tributary doctor >looked || [ $? = 1 ] || fail "tributary doctor ends with another status than 0 and 1" # a note or a problem of this machine
  cat looked
  grep -q "ok  *programs .* are in .*/tributary/bin" looked || fail "doctor does not find the daemons of the wheel"
  timeout 120 tributary run --nodes 2 --base-dir "$1/run" -- python "$folder/trainer.py" | tee said
  grep -q "parameters \[1.0, 1.0, 1.0\]" said || fail "the job did not end with parameters 1.0; its lines are above"
)
number=0
for python; do
  number=$((number + 1))
  mkdir "$folder/$number"
  use "$folder/$number" "$python"
done
