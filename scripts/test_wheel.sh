#!/usr/bin/env bash
# Makes a wheel of a built tree, installs it into an empty environment, and uses what it brings.
#
#   scripts/test_wheel.sh BUILD
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$(realpath "$1")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
wheel=$("$here/make_wheel.sh" "$build" "$folder/out" | tail -n 1)
echo "$wheel"
case $wheel in
  *-py3-none-manylinux_*_x86_64.whl) ;;
  *) echo "its name has other tags than py3-none-manylinux" && exit 1 ;;
esac
python3 -m venv "$folder/empty"
"$folder/empty/bin/pip" install --quiet --no-index --no-deps "$wheel"
unset PYTHONPATH TRIBUTARY_LIBRARY
export PATH=$folder/empty/bin:$PATH
cd "$folder"
for program in tributary tributary-server tributary-worker tributary-train; do "$program" --version; done
tributary doctor || test $? = 1 # this machine may have a problem
cat >trainer.py <<'PYTHON'
import ctypes
from tributary import _library as trib
library = trib.load()
options = trib.AttachOptions(job='job.name = "wheel"\n[optimizer]\nname = "sgd"\nlr = 0.5\n', tensors=[trib.Tensor("w", (3,))])
session = library.attach(options)
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
tributary run --nodes 2 --base-dir "$folder/run" -- python trainer.py | tee said
grep -q 'parameters \[1.0, 1.0, 1.0\]' said
