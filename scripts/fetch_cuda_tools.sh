#!/usr/bin/env bash
# NVIDIA's disassembler of device code, cuobjdump and the nvdisasm that it calls, from PyPI's packages: the CUDA toolkit of a
# machine may lack them.
#
#   scripts/fetch_cuda_tools.sh FOLDER       puts them into FOLDER if need be, and prints the folder of the programs
set -euo pipefail
folder=$1

if [ ! -f "$folder/complete" ]; then
  rm -rf "$folder"
  mkdir -p "$folder"
  # Each for x86-64 and for 64-bit Arm.
  cat >"$folder/wanted" <<'WANTED'
nvidia-cuda-cuobjdump==13.5.37 \
    --hash=sha256:38780fee50863252a0b8926357faa91615ca1c8346490563f33a06100cd73f58 \
    --hash=sha256:f48e3148535365161a268547b285fd01d92c80e4b457275375933825b5fc26b2
nvidia-cuda-nvdisasm==13.5.37 \
    --hash=sha256:d3fdbdd49fa53e2e4aacd3db8259d052bd2b049ececdcb69e92e083c6728e7ca \
    --hash=sha256:a3a8248074edb9fba63b74c38a5416b712a91ab09e70b8ab37186c3d293fc605
WANTED
  if ! python3 -m pip install --quiet --quiet --quiet --no-deps --require-hashes --target "$folder" \
    -r "$folder/wanted" >&2; then
    echo "fetch_cuda_tools.sh: pip could not get nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm with their hashes" >&2
    exit 1
  fi
  touch "$folder/complete"
fi
program=$(find "$folder" -name cuobjdump -type f | head -n 1)
chmod +x "$(dirname "$program")"/*
dirname "$program"
