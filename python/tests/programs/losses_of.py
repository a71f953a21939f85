"""Runs an example, and writes the losses that it logs to a file: ROUND REPLICA LOSS, one line a round.

python losses_of.py FOLDER EXAMPLE [ARGUMENT...]
"""

import runpy
import sys
from pathlib import Path

import tributary.torch as trib


def main() -> None:
    folder, example, *arguments = sys.argv[1:]
    out = (Path(folder) / f"losses-{trib.rank()}").open("a")

    def log(**figures: object) -> None:
        from tributary.torch._run.program import program, replica

        assert program.link is not None
        out.write(f"{program.link.round} {replica()} {float(figures['loss']):.9g}\n")  # type: ignore[arg-type]
        out.flush()

    trib.log = log
    sys.argv = [example, *arguments]
    sys.path.insert(0, str(Path(example).parent))
    runpy.run_path(example, run_name="__main__")


main()
