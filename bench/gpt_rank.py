"""One rank of examples/gpt.py for bench/torch_losses.py, with those of torch's algorithms that give the same bits.

    gpt_rank.py FOLDER [ARGUMENT...]          arguments of the example

Appends a JSON object to FOLDER/rounds-RANK.txt after each round: {round, ns (CLOCK_MONOTONIC), attached (how often the
rank has attached again), gradients ("host", or "device" where the worker lends memory of the GPU), pid}. Prints one at
the end: {digest (of the parameters)}.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
from pathlib import Path

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else cuBLAS may give other bits in each run

import torch
from torch_rank import HERE, digest_of

EXAMPLE = HERE / "examples" / "gpt.py"


def main() -> None:
    import tributary.torch as trib  # found where torch_rank looks for it
    from tributary.torch._run.program import program

    folder, *arguments = sys.argv[1:]
    out = (Path(folder) / f"rounds-{trib.rank()}.txt").open("a")

    def log(**figures: object) -> None:
        link = program.link
        assert link is not None
        gradients = "device" if link.view.on_device else "host"
        said = {"round": link.round, "ns": time.monotonic_ns(), "attached": link.report.restarts}
        out.write(json.dumps({**said, "gradients": gradients, "pid": os.getpid()}) + "\n")
        out.flush()

    trib.log = log  # the example calls it after each step
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    sys.argv = [str(EXAMPLE), *arguments]
    ended = runpy.run_path(str(EXAMPLE), run_name="__main__")
    print(json.dumps({"digest": digest_of(ended["model"])}), flush=True)


if __name__ == "__main__":
    main()
