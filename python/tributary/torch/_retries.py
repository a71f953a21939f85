"""How often a job is attached again, and with which pauses."""

from __future__ import annotations

import time

FRUITLESS_ATTACHES = 5  # so often at least is tried again without a round done in between, ...
FRUITLESS_PATIENCE_S = 60.0  # ... and so long
FIRST_PAUSE_S = 0.025
LONGEST_PAUSE_S = 5.0


class Retries:
    """Of one job. Tries without a round done in between are fruitless, and have an end.

    Attributes:
        fruitless: how often was tried since then.
    """

    def __init__(self) -> None:
        self.fruitless = 0
        self._best = 0  # newest round before a loss
        self._progress_at = time.monotonic()

    def begin(self, round: int) -> None:
        """The session is lost; the newest round was ``round``."""
        if round > self._best or self.fruitless == 0:
            self._best = max(self._best, round)
            self.fruitless = 0
            self._progress_at = time.monotonic()

    def pause(self) -> float | None:
        """Before the next try, seconds; None: that were enough."""
        late = time.monotonic() > self._progress_at + FRUITLESS_PATIENCE_S
        if self.fruitless >= FRUITLESS_ATTACHES and late:
            return None
        self.fruitless += 1
        return min(FIRST_PAUSE_S * 2 ** min(self.fruitless - 1, 10), LONGEST_PAUSE_S)

    def round_done(self) -> None:
        """They were not fruitless."""
        self.fruitless = 0
