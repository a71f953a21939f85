"""What is known of a round while it is open."""

from __future__ import annotations

import time

from tributary.torch import _complaints


class OpenRound:
    """Ends with its round; the next one has one of its own.

    Attributes:
        held: backward passes inside ``no_sync()``.
        weight: that its gradients are said with; None before the first.
        rates: said so far, by group.
        order: tensors in the order in which they were pushed.
        began_ns: of ``time.monotonic_ns()``.
    """

    def __init__(self) -> None:
        self.held = 0
        self.weight: int | None = None
        self.rates: dict[int, float] = {}
        self.order: list[int] = []
        self.began_ns = time.monotonic_ns()
        self._factor: int | None = None  # of the next backward pass
        self._samples: list[int] = []  # of the passes

    @property
    def samples(self) -> int:
        """That were said of all its passes; 0: nothing was."""
        return sum(self._samples)

    @property
    def factor(self) -> int:
        """What gradients of the pass under way are multiplied by: a mean over samples becomes a sum."""
        return 1 if self._factor is None else self._factor

    def say_samples(self, count: int) -> None:
        """The next backward pass is of so many samples."""
        if count < 0:
            raise ValueError(f"samples({count}): must be 0 or more")
        if self.weight is not None:
            raise RuntimeError("samples() came after gradients of the round were sent: call it before backward")
        self._factor = count
        self._samples.append(count)

    def weigh(self, passes: int, all_in_step: bool) -> None:
        """Decides the weight, at the first gradient. passes: backward passes that the round has."""
        if self.weight is not None:
            return
        if self._samples and len(self._samples) != passes:
            raise RuntimeError(
                f"samples() was called {len(self._samples)} times in a round of {passes} backward passes: call it "
                "before each of them, or before none"
            )
        if self._samples and all_in_step and passes > 1:
            raise RuntimeError("samples() with several backward passes a round needs overlap='backward'")
        self.weight = sum(self._samples) if self._samples else passes

    def rate(self, group: int, now: float) -> float:
        """The group's rate, which is the same in all of the round."""
        if self.rates.setdefault(group, now) != now:
            raise RuntimeError(_complaints.rate_changed(group, self.rates[group], now))
        return now
