#!/usr/bin/env bash
# Prints the Python that tests of tributary.torch and of Kubernetes' manifests run with: python3 itself if its torch is 2.1 or newer and the other
# packages are there, else that of an environment under build/torch, which is made if it is not there.
#
#   scripts/torch_environment.sh [DIRECTORY]      of the environment; default build/torch
#
# Exactly torch==2.13.0 is asked for: where a CPU build of it is at hand pip takes that, and no other wording does. Such a
# build has another hash than PyPI's, so torch has none here. All else does, what torch needs on a CPU included; it is
# installed first, so that pip takes nothing else with torch. (PyPI's torch brings CUDA's libraries, without hashes.)
set -euo pipefail
cd "$(dirname "$0")/.."

environment=${1:-$PWD/build/torch}
has_torch='
import re, sys
import kubernetes_validate, numpy, safetensors, torch
sys.exit(tuple(int(n) for n in re.findall(r"\d+", torch.__version__)[:2]) < (2, 1))'

if python3 -c "$has_torch" >/dev/null 2>&1; then
  command -v python3
  exit 0
fi
python=$environment/bin/python
mkdir -p "$(dirname "$environment")"
exec 9>"$environment.lock"
flock 9  # tests that run side by side make it once
if [ ! -x "$python" ] || ! "$python" -c "$has_torch" >/dev/null 2>&1; then
  log=$environment.log
  if ! { python3 -m venv --clear "$environment" && "$environment/bin/pip" install --require-hashes -r scripts/requirements/torch.txt &&
    "$environment/bin/pip" install 'torch==2.13.0'; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "torch_environment.sh: cannot make an environment with torch in $environment; $log has all that was said." \
      "Install torch 2.1 or newer, numpy, safetensors and kubernetes-validate for python3, or with torch==2.13.0 into that environment" >&2
    exit 1
  fi
fi
echo "$python"
