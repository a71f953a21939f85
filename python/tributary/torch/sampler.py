"""DistributedSampler: which samples a rank sees, as a function of the round."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sized
from typing import Any

import torch
from torch.utils.data import BatchSampler, Sampler

from tributary.torch._link import Link
from tributary.torch._program import program, replica, replicas


class DistributedSampler(Sampler[int]):
    """Deals a data set out to ranks, and goes on where the job is.

    Batch b of all ranks together is ``order[b * B * W : (b + 1) * B * W]`` of the epoch's order (B samples a batch, W
    ranks), whatever the nodes are. With ``accumulate=k`` a round's k batches are those of k ranks, so that one process
    sees what k ranks would. What is left of an epoch when no full round can be made of it is dropped.

    In a process that goes on at a round, epochs before it are empty, and its own begins at its batch. So a loop may not
    leave an epoch early.

    Args:
        dataset: that is sampled; only its length is used.
        shuffle: in an order that follows from seed and epoch; else in the data set's.
        seed: the same on all ranks.
        batch_size: of the batches that are made of the samples. None: what the ``DataLoader`` has.
        accumulate: batches a round. None: what the :class:`DistributedOptimizer` has.
    """

    def __init__(
        self,
        dataset: Sized,
        *,
        shuffle: bool = True,
        seed: int = 0,
        batch_size: int | None = None,
        accumulate: int | None = None,
    ) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self._batch_size = batch_size
        self._accumulate = accumulate
        self._epoch = 0
        self._rewinds = 0  # of the job, that this sampler has followed

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is of this epoch. Without it, each is of the epoch after the last one's."""
        self._epoch = epoch

    def __len__(self) -> int:
        """How many samples this rank has in a whole epoch."""
        size = self._batch_size or 1
        return self._batches(size) * size

    def __iter__(self) -> Iterator[int]:
        size = self._batch_size or _batch_size_of(sys._getframe(1))
        if size is None:
            raise ValueError(
                "DistributedSampler: how many samples a batch has is not known; give it to a DataLoader with "
                "batch_size=, or pass batch_size= to the sampler"
            )
        self._batch_size = size
        if self._batches(size) == 0:
            raise ValueError(
                f"DistributedSampler: {len(self.dataset)} samples make no round of {replicas()} ranks with "
                f"{self._per_round()} batches of {size}: choose smaller batches"
            )
        epoch = self._epoch
        self._epoch += 1
        link = program.link
        if link is not None:
            link.batches_per_epoch, link.batch_size = self._batches(size), size
        return self._indices(epoch, size)

    def _per_round(self) -> int:
        link = program.link
        return self._accumulate or (link.micro_batches if link is not None else 1)

    def _batches(self, size: int) -> int:
        """Of this rank in an epoch."""
        per_round = self._per_round()
        return len(self.dataset) // (size * replicas() * per_round) * per_round

    def _order(self, epoch: int) -> torch.Tensor:
        if not self.shuffle:
            return torch.arange(len(self.dataset))
        generator = torch.Generator()
        generator.manual_seed(self.seed + epoch)
        return torch.randperm(len(self.dataset), generator=generator)

    def _indices(self, epoch: int, size: int) -> Iterator[int]:
        link = program.link
        batches = self._batches(size)
        at = epoch * batches  # in batches since the job began
        if link is not None:
            done = self._done(link)
            if link.rewinds != self._rewinds:
                at, self._rewinds = done, link.rewinds
            else:
                at = max(at, min(done, (epoch + 1) * batches))
        ordered, order = -1, torch.empty(0)
        while at < (epoch + 1) * batches:
            if at // batches != ordered:
                ordered = at // batches
                order = self._order(ordered)
            yield from order[self._places(at % batches, size)].tolist()
            at += 1
            if link is not None and link.rewinds != self._rewinds:
                at, self._rewinds = self._done(link), link.rewinds

    def _done(self, link: Link) -> int:
        """Batches of this rank before the round that the job goes on at."""
        per_round = self._accumulate or link.batches_per_round
        return link.resumed * per_round

    def _places(self, batch: int, size: int) -> torch.Tensor:
        """Where in the epoch's order this rank's batch lies: a round's batches are those of neighbouring ranks."""
        per_round = self._per_round()
        round, part = divmod(batch, per_round)
        ranks = replicas() * per_round
        return (round * size + torch.arange(size)) * ranks + replica() * per_round + part


def _batch_size_of(frame: Any) -> int | None:
    """The batch size of the BatchSampler that iterates the sampler: it is among the callers, and iter() has no argument
    to say it.
    """
    for _ in range(4):
        if frame is None:
            return None
        caller = frame.f_locals.get("self")
        if isinstance(caller, BatchSampler):
            return int(caller.batch_size)
        frame = frame.f_back
    return None
