"""The state of an open round."""

from __future__ import annotations

import sys
import time
from typing import Callable

import torch

from tributary.torch._base import complaints
from tributary.torch._steps.settings import Settings


class OpenRound:
    """Ends with its round; the next one has one of its own.

    Args:
        average: the gradient is the mean over backward passes; else their sum.
        counts: whether the loop has a batch that counts. Asked in each pass; gradients of the others are zeros.

    Attributes:
        weight: that its gradients are said with; None before the first.
        settings: said so far, by group.
        order: tensors in the order in which they were pushed.
        began_ns: of ``time.monotonic_ns()``.
    """

    def __init__(self, average: bool = False, counts: Callable[[], bool] = lambda: True) -> None:
        self._average = average
        self._counts = counts
        self.weight: int | None = None
        self.settings: dict[int, Settings] = {}
        self.order: list[int] = []
        self.began_ns = time.monotonic_ns()
        self._samples: list[int] = []  # of the passes
        self._tasks: list[int] = []  # autograd's numbers of the passes, ascending
        self._void: set[int] = set()  # of those that count nothing
        self._under_way: int | None = None  # the one whose pass is not over

    def backward(self) -> None:
        """A gradient has come: counts the pass that it belongs to.

        Reentrant checkpoints begin tasks of autograd inside a pass, with higher numbers, which end before it.
        """
        task = torch._C._current_graph_task_id()
        if self._under_way is not None and task >= self._under_way:
            return
        while self._tasks and self._tasks[-1] >= task:
            self._tasks.pop()
        self._tasks.append(task)
        if not self._counts():
            self._void.add(task)
        if not _is_compiled():  # it has no tasks inside a pass, and would not call back
            self._under_way = task
            torch.autograd.Variable._execution_engine.queue_callback(self._pass_is_over)

    def _pass_is_over(self) -> None:
        self._under_way = None

    @property
    def passes(self) -> int:
        """Backward passes so far."""
        return len(self._tasks)

    @property
    def samples(self) -> int:
        """Samples that samples() gave for the round's passes; 0: none given."""
        return sum(self._samples)

    def seen(self, drawn: int) -> int:
        """Samples of the round, of which the loop has drawn so many."""
        return (self.samples or drawn) if self.weight else 0

    @property
    def factor(self) -> int:
        """The factor for gradients of the current pass: it makes a mean over samples a sum."""
        return self._samples[-1] if self._samples else 1

    @property
    def adds_by_weight(self) -> bool:
        """Whether passes count for themselves, as ranks do. Else they add up in ``p.grad``, as torch has it."""
        return self._average or bool(self._samples)

    def say_samples(self, count: int) -> None:
        """The next backward pass is of so many samples."""
        if count < 0:
            raise ValueError(f"samples({count}): must be 0 or more")
        if self.weight is not None:
            raise RuntimeError("samples() came after gradients of the round were sent: call it before backward")
        self._samples.append(count if self._counts() else 0)

    def weigh(self, all_in_step: bool) -> int:
        """The round's weight, which is decided at the first gradient that is sent.

        A rank counts 1, whatever its passes are, as in DistributedDataParallel. Passes that are averaged count 1 each,
        so that ranks with more of them count more. Samples count 1 each where they were said. A rank of which no pass
        counts has no weight.
        """
        if self.weight is not None:
            return self.weight
        passes = max(1, self.passes)
        counted = passes - len(self._void.intersection(self._tasks)) if self._tasks else int(self._counts())
        if self._samples and len(self._samples) != passes:
            raise RuntimeError(
                f"samples() was called {len(self._samples)} times in a round of {passes} backward passes: call it "
                "before each of them, or before none"
            )
        if self._samples and all_in_step and passes > 1:
            raise RuntimeError("samples() with several backward passes a round needs overlap='backward'")
        self.weight = self.samples if self._samples else counted if self._average else min(1, counted)
        return self.weight

    def say(self, group: int, now: Settings) -> Settings:
        """The group's settings, which are the same in all of the round."""
        if self.settings.setdefault(group, now) != now:
            raise RuntimeError(complaints.settings_changed(group, self.settings[group], now))
        return now


def _is_compiled() -> bool:
    """Whether the backward pass is compiled autograd's."""
    compiled = sys.modules.get("torch._dynamo.compiled_autograd")
    return bool(getattr(compiled, "in_compiled_autograd_region", False))
