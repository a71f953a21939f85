#!/usr/bin/env bash
# The headers of NCCL and cuBLAS, where nvcc is and they are not (NCCL is no part of the CUDA toolkit): so that tests compile
# the code that uses them. Takes them out of PyPI's packages, into FOLDER; the libraries themselves are not needed to build.
#
#   scripts/fetch_cuda_headers.sh FOLDER       prints the folder to search, or nothing if there is no need or no way
set -euo pipefail
folder=$1
packages=(nvidia-nccl-cu13==2.28.9 nvidia-cublas==13.10.0.20)

command -v nvcc >/dev/null || exit 0
printf '#include <nccl.h>\n#include <cublas_v2.h>\n' | nvcc -E -x cu - >/dev/null 2>&1 && exit 0
if [ ! -f "$folder/complete" ]; then
  rm -rf "$folder"
  mkdir -p "$folder"
  wheels=$(mktemp -d)
  trap 'rm -rf "$wheels"' EXIT
  if ! python3 -m pip download --quiet --quiet --quiet --no-deps --dest "$wheels" "${packages[@]}" >&2; then
    echo "no headers of NCCL and cuBLAS: pip could not get ${packages[*]}; the code that needs them is not compiled" >&2
    exit 0
  fi
  python3 - "$folder" "$wheels"/*.whl <<'PYTHON'
import pathlib
import sys
import zipfile

folder = pathlib.Path(sys.argv[1])
for wheel in sys.argv[2:]:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            _, include, header = name.partition("/include/")
            if include and header.endswith(".h"):
                target = folder / header
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(name))
PYTHON
  touch "$folder/complete"
fi
echo "$folder"
