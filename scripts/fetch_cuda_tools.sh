#!/usr/bin/env bash
# NVIDIA's disassembler of device code, cuobjdump and the nvdisasm that it calls, from PyPI's packages: the CUDA toolkit of a
# machine may lack them.
#
#   scripts/fetch_cuda_tools.sh FOLDER       puts them into FOLDER if need be, and prints the folder of the programs
set -euo pipefail
folder=$1
packages=(nvidia-cuda-cuobjdump==13.5.37 nvidia-cuda-nvdisasm==13.5.37)

if [ ! -f "$folder/complete" ]; then
  rm -rf "$folder"
  mkdir -p "$folder"
  if ! python3 -m pip install --quiet --quiet --quiet --no-deps --target "$folder" "${packages[@]}" >&2; then
    echo "fetch_cuda_tools.sh: pip could not get ${packages[*]}" >&2
    exit 1
  fi
  touch "$folder/complete"
fi
program=$(find "$folder" -name cuobjdump -type f | head -n 1)
chmod +x "$(dirname "$program")"/*
dirname "$program"
