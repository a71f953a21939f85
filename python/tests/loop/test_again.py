"""Ranks that start together: each goes through a complete round again if another one has to."""

from __future__ import annotations

import unittest
from unittest import mock

import test_place

from tributary.torch._model.parallel import Part
from tributary.torch._run.place import Kept

LOOPS = (test_place.told_epochs, test_place.held_passes, test_place.steps_here, test_place.by_values_of_all)
EACH = 3  # of the points where test_place.py ends a process


class OtherGoesAgain(Part):
    """One of a program whose ranks start together. Another rank has not come to its top."""

    starts_together = True

    def least(self, number: int) -> int:
        return number - number % 2  # before a top


class Again(test_place.Loops):
    """The calm run's bits, wherever a process ends."""

    def setUp(self) -> None:
        super().setUp()
        self.enterContext(mock.patch("tributary.torch.optimizer.part_of", return_value=OtherGoesAgain()))
        self.tops = 0

    def test_wherever_it_ends(self) -> None:
        take = Kept.at

        def noted(kept: Kept, position: int) -> Kept:
            found = take(kept, position)
            self.tops += found is not kept
            return found

        self.enterContext(mock.patch.object(Kept, "at", noted))
        self.library.others = lambda data: [test_place.other_rank(data)]
        for loop in LOOPS:
            before = self.tops
            for at in list(self.at_points(loop))[::EACH]:
                with self.subTest(loop.__name__, at=at):
                    self.go_on(loop, test_place.kill, at)
            self.assertGreater(self.tops, before, f"{loop.__name__} never came to a top")

    def test_at_a_top_the_newest_round_is_gone_through_again(self) -> None:
        self.process(test_place.told_epochs)
        complete = len(self.library.rounds) - 1
        self._leave()
        again = self.process(test_place.told_epochs)
        self.assertEqual(sorted(again.batches), [complete])
        self.assertEqual(len(self.library.rounds) - 1, complete)


def load_tests(loader: unittest.TestLoader, *_: object) -> unittest.TestSuite:
    """Without those that are inherited, which ``test_place.py`` runs."""
    names = [name for name in vars(Again) if name.startswith("test_")]
    return unittest.TestSuite(Again(name) for name in names)


if __name__ == "__main__":
    unittest.main()
