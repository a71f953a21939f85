#!/usr/bin/env bash
# Prints the Python that tests of tributary.torch and of Kubernetes' manifests run with: python3 itself if its torch is 2.1 or newer and the other
# packages are there, else that of scripts/python_environment.sh torch.
#
# Exactly torch==2.13.0 is asked for: where a CPU build of it is at hand pip takes that, and no other wording does. Such a
# build has another hash than PyPI's, so torch has none here. All else does, what torch needs on a CPU included; it is
# installed first, so that pip takes nothing else with torch. (PyPI's torch brings CUDA's libraries, without hashes.)
set -euo pipefail
cd "$(dirname "$0")/.."

has_torch='
import re, sys
import kubernetes_validate, numpy, safetensors, torch
sys.exit(tuple(int(n) for n in re.findall(r"\d+", torch.__version__)[:2]) < (2, 1))'

if python3 -c "$has_torch" >/dev/null 2>&1; then
  command -v python3
  exit 0
fi
programs=$(scripts/python_environment.sh torch torch==2.13.0) || {
  echo "torch_environment.sh: or install torch 2.1 or newer, numpy, safetensors and kubernetes-validate for python3" >&2
  exit 1
}
echo "$programs/python"
