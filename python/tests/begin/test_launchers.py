"""``tributary run`` and torchrun launch alike: a program with a process group of torch's has the same numbers."""

from __future__ import annotations

import itertools
import unittest

import torch
from cluster import PROGRAMS
from group_rank import BATCH, EPOCHS
from launchers import RANKS, ByRun, ByTorchrun, Launched
from test_cluster import WithDaemons, say
from torch.nn import functional as F
from trainer import SAMPLES, batches, model

PROGRAM = str(PROGRAMS / "group_rank.py")
PAUSE = "0.05"
ROUNDS = EPOCHS * SAMPLES // (BATCH * RANKS)


def losses_of(launched: Launched) -> dict[int, float]:
    """By round; a process that goes through a round again says the same."""
    losses: dict[int, float] = {}
    for round, _, loss in launched.lines("round"):
        assert losses.setdefault(int(round), float(loss)) == float(loss), f"round {round}: {loss} and {losses}"
    return losses


def reference() -> dict[int, float]:
    """One process with the batches of all ranks."""
    net, losses = model(3), {}
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    for round, (x, y) in enumerate(itertools.islice(batches(BATCH * RANKS), ROUNDS)):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses[round + 1] = loss.item()
    return losses


class ProcessGroup(WithDaemons):
    def run_with(self, kind: type[Launched], kills: dict[int, int]) -> tuple[dict[int, float], str]:
        """Losses by round, and the ranks' digest. kills: ranks, by the round after which each is killed."""
        folder = self.folder / kind.__name__
        folder.mkdir()
        with kind(folder, [PROGRAM, PAUSE]) as launched:
            for round, rank in kills.items():
                launched.wait_for_round(round)
                launched.kill(rank)
            launched.wait()
            digests = {words[0] for words in launched.lines("digest")}
            starts = [words[0] for words in launched.lines("starts")]
            self.assertEqual(set(starts), {"0", "1"})
            for rank in "01":  # none outlives a lost one
                self.assertGreaterEqual(starts.count(rank), 1 + len(kills), launched.text())
        (mine,) = digests
        return losses_of(launched), mine

    def test_the_same_numbers_under_both_and_after_losses(self) -> None:
        want = reference()
        digests = set()
        for kind, kills in ((ByRun, {10: 1, 30: 0}), (ByTorchrun, {10: 1})):
            with self.subTest(kind.__name__):
                losses, mine = self.run_with(kind, kills)
                digests.add(mine)
                self.assertEqual(sorted(losses), sorted(want))
                error = max(abs(losses[round] - want[round]) for round in want)
                say(f"{kind.__name__}, {len(kills)} kills: losses differ by {error:.1e} from one process'")
                self.assertLess(error, 1e-5)
        self.assertEqual(len(digests), 1)


if __name__ == "__main__":
    unittest.main()
