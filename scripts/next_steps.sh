#!/usr/bin/env bash
# Says what to do after `make demo`: the last thing that it prints. Lines with two spaces before them are commands, which
# tests/test_readme.py runs.
set -euo pipefail
cd "$(dirname "$0")/.."
cat <<TEXT

Next, in this shell:

  export PATH="$PWD/build/release/bin:\$PATH"
  tributary up configs/fashion-mnist.toml --servers 2 --nodes 2 --ranks-per-node 2 --fresh

    trains once more. The line "server 0" of what it prints has the address of a page for a browser (admin).
    Another terminal shows the same: 'build/release/bin/tributary top --base-dir runs/fashion-mnist'.

  python3 -m venv build/venv && . build/venv/bin/activate && pip install torch numpy
  export PYTHONPATH="$PWD/python" TRIBUTARY_LIBRARY="$PWD/build/release/lib/libtributary.so.1"
  tributary run --servers 2 --nodes 2 --ranks-per-node 2 --fresh -- python3 examples/gpt.py

    trains a GPT with PyTorch, for some minutes on two cores. README.md goes on from there.
TEXT
