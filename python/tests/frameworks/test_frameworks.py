"""Hugging Face's Trainer, Lightning and Accelerate over Tributary: the curve of DistributedDataParallel, under both
launchers, and with a rank that is killed. ``scripts/test_frameworks.sh`` runs it, in an environment that has them.

Lines "frameworks ..." have what was measured.
"""

from __future__ import annotations

import unittest

from cluster import PROGRAMS
from framework_data import ACCUMULATE, BATCH, EPOCHS, SAMPLES
from launchers import LAUNCHERS, RANKS, ByTorchrun, Launched
from test_cluster import WithDaemons, say

BATCHES = SAMPLES // (BATCH * RANKS)
STEPS = EPOCHS * -(-BATCHES // ACCUMULATE)
KILLED = 11  # a rank, in the middle of an epoch and of what is logged together
PAUSE = "0.1"

Curve = dict[tuple[str, str], list[float]]  # "round" and its number, or "eval" and its epoch: figures


def curve_of(launched: Launched) -> Curve:
    """A process that goes through a round again says the same."""
    curve: Curve = {}
    for kind in ("round", "eval"):
        for number, *figures in launched.lines(kind):
            said = [float(figure) for figure in figures]
            assert curve.setdefault((kind, number), said) == said, f"{kind} {number}: {said} and {curve}"
    return curve


class Frameworks(WithDaemons):
    def of(self, launched: Launched) -> tuple[Curve, str]:
        """After its end: the curve, and the digest that all ranks have."""
        launched.wait()
        digests = {words[0] for words in launched.lines("digest")}
        self.assertEqual(len(digests), 1, launched.text())
        return curve_of(launched), digests.pop()

    def start(self, kind: type[Launched], program: str, how: str, pause: str) -> Launched:
        folder = self.folder / f"{kind.__name__}-{how}"
        folder.mkdir()
        return kind(folder, [str(PROGRAMS / program), how, pause])

    def check(self, program: str, tolerance: float, saves: list[str]) -> None:
        with self.start(ByTorchrun, program, "ddp", "0") as launched:
            want, _ = self.of(launched)
        self.assertGreater(len(want), STEPS // 2)
        ends = set()
        for kind in LAUNCHERS:
            with self.start(kind, program, "tributary", PAUSE) as launched:
                launched.wait_for_round(KILLED)
                launched.kill(1)
                got, digest = self.of(launched)
                ends.add(digest)
                starts = [words[0] for words in launched.lines("starts")]
                self.assertGreaterEqual(starts.count("1"), 2)
                if saves:
                    self.assertEqual(launched.lines("saved"), [saves])
            self.assertEqual(sorted(got), sorted(want))
            error = max(abs(a - b) for key in want for a, b in zip(want[key], got[key]))
            say(f"frameworks {program} {kind.__name__}: {len(want)} figures, at most {error:.1e} from DDP's")
            self.assertLess(error, tolerance)
        self.assertEqual(len(ends), 1)

    def test_trainer(self) -> None:
        steps = [str(STEPS // EPOCHS * (epoch + 1)) for epoch in range(EPOCHS)]
        self.check("trainer_rank.py", 3e-3, sorted(f"checkpoint-{step}" for step in steps))

    def test_lightning(self) -> None:
        self.check("lightning_rank.py", 1e-4, [f"epoch={epoch}.ckpt" for epoch in range(EPOCHS)])

    def test_accelerate(self) -> None:
        self.check("accelerate_rank.py", 1e-4, [])


if __name__ == "__main__":
    unittest.main()
