"""Ranks that see the same data: their mean gradient is each one's own."""

from __future__ import annotations

import math

import torch

from tributary.torch._model.slots import Slot
from tributary.torch._run.link import Link
from tributary.torch._run.program import replicas

_ROUNDS = 3  # in a row, from a process' first one on
_TOLERANCE = 1e-5  # relative: means are rounded

WARNING = (
    "all ranks had the very same gradients in this process' first rounds, as if all saw the same data: give "
    "the DataLoader sampler=tributary.torch.DistributedSampler(dataset)"
)


class SameData:
    """Compares this rank's gradient with the mean, where the job has it: by its norm, or all of it.

    Args:
        mean: the job answers with the mean gradient.
        norm: the job's gate has the norm of the mean.
    """

    def __init__(self, *, mean: bool, norm: bool) -> None:
        self._mean = mean
        self._left = _ROUNDS if mean or norm else 0

    def seen(self, link: Link, slots: list[Slot], weight: int) -> bool:
        """After a round, before anything is taken from it. True once: the first rounds were all such."""
        if self._left == 0:
            return False
        if link.part.replica is not None or replicas() == 1 or not self._same(link, slots, weight):
            self._left = 0
            return False
        self._left -= 1
        return self._left == 0

    def _same(self, link: Link, slots: list[Slot], weight: int) -> bool:
        if weight == 0:
            return False
        if self._mean:
            pairs = [(_own(slot, weight), link.attachment.parameters(slot.index)) for slot in slots]
            return any(bool(mean.any()) for _, mean in pairs) and all(
                torch.allclose(own.to(mean), mean, rtol=_TOLERANCE, atol=0.0) for own, mean in pairs
            )
        gate = link.gate(link.round)
        norm = math.sqrt(sum(float(_own(slot, weight).double().square().sum()) for slot in slots))
        return gate is not None and norm > 0.0 and math.isclose(norm, gate.norm, rel_tol=_TOLERANCE)


def _own(slot: Slot, weight: int) -> torch.Tensor:
    """This rank's gradient."""
    return torch.zeros_like(slot.local()) if slot.source is None else slot.source * (slot.factor / weight)
