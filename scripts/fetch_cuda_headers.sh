#!/usr/bin/env bash
# The header of NCCL, where nvcc is and it is not (NCCL is no part of the CUDA toolkit): so that tests compile the code that
# uses it. Takes it out of PyPI's package, into FOLDER; the library itself is not needed to build.
#
#   scripts/fetch_cuda_headers.sh FOLDER       prints the folder to search, or nothing if there is no need or no way
set -euo pipefail
folder=$1
package=nvidia-nccl-cu13==2.28.9
# For one platform, because headers are the same on all.
hash=sha256:e4553a30f34195f3fa1da02a6da3d6337d28f2003943aa0a3d247bbc25fefc42

command -v nvcc >/dev/null || exit 0
printf '#include <nccl.h>\n' | nvcc -E -x cu - >/dev/null 2>&1 && exit 0
if [ ! -f "$folder/complete" ]; then
  rm -rf "$folder"
  mkdir -p "$folder"
  wheels=$(mktemp -d)
  trap 'rm -rf "$wheels"' EXIT
  echo "$package --hash=$hash" >"$wheels/wanted"
  if ! python3 -m pip download --quiet --quiet --quiet --no-deps --only-binary :all: --platform manylinux_2_18_x86_64 \
    --require-hashes --dest "$wheels" -r "$wheels/wanted" >&2; then
    echo "no header of NCCL: pip could not get $package with its hash; the code that needs it is not compiled" >&2
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
