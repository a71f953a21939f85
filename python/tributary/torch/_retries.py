"""How often a job is attached again, and with which pauses."""

from __future__ import annotations

import time

FRUITLESS_ATTACHES = 5  # so often at least is tried again without a round done in between, ...
FRUITLESS_PATIENCE_S = 60.0  # ... and so long
FIRST_PAUSE_S = 0.025
LONGEST_PAUSE_S = 5.0


class Retries:
    """Limits one job's fruitless retries: those without a complete round between them.

    Attributes:
        fruitless: retries since the last complete round.
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
        """Returns the seconds to wait before the next retry; None: give up."""
        late = time.monotonic() > self._progress_at + FRUITLESS_PATIENCE_S
        if self.fruitless >= FRUITLESS_ATTACHES and late:
            return None
        self.fruitless += 1
        return min(FIRST_PAUSE_S * 2 ** min(self.fruitless - 1, 10), LONGEST_PAUSE_S)

    def round_done(self) -> None:
        """Resets the count: the retries were not fruitless."""
        self.fruitless = 0
