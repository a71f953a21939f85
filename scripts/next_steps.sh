#!/usr/bin/env bash
# Says what to do after `make demo`: the last thing that it prints.
set -euo pipefail
cd "$(dirname "$0")/.."
cat <<EOF

Next, in this shell:

  export PATH="$PWD/build/release/bin:\$PATH"
  tributary up configs/fashion-mnist.toml --servers 2 --nodes 2 --ranks-per-node 2 --fresh

    trains once more. While it does, the first line that it prints has the address of a page for a browser.
    'tributary top --base-dir runs/fashion-mnist' shows the same in another terminal.

  python3 -m venv build/venv && . build/venv/bin/activate && pip install torch numpy
  export PYTHONPATH="$PWD/python" TRIBUTARY_LIBRARY="$PWD/build/release/lib/libtributary.so.1"
  tributary run --servers 2 --nodes 2 --ranks-per-node 2 -- python3 examples/gpt.py

    trains a GPT with PyTorch on the same daemons. README.md goes on from there.
EOF
