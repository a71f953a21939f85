"""The iterator of a DataLoader whose samples a DistributedSampler deals out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Callable

from torch.utils.data import DataLoader

from tributary.torch._base.stop import let_loaders_end
from tributary.torch._run.program import program
from tributary.torch.sampler import DistributedSampler, Turn

_NONE = object()


class Batches(Iterator[Any]):
    """Counts the batches that reach the loop, and drops those that were fetched for another place in the data.

    A loader with processes asks its sampler for batches that the loop has not come to: the sampler cannot count them.

    Args:
        source: of the loader's batches.
        iterate: makes the loader's own iterator.
    """

    def __init__(self, source: Any, sampler: DistributedSampler, iterate: Callable[[], Any]) -> None:
        self._iterate = iterate
        self._sampler = sampler
        self._begin(sampler.begin(getattr(source, "batch_size", None), getattr(source, "drop_last", False)))

    def _begin(self, turn: Turn | None) -> None:
        """None: there are no more batches."""
        if turn is None:
            self._over = True
            raise StopIteration(self._why_empty())
        self._turn, self._over = turn, False
        self._sampler.for_loader(turn)
        self._batches = self._iterate()

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        while not self._over:
            if self._sampler.moved(self._turn):
                self._begin(self._sampler.again(self._turn))
            self._sampler.tops(self._turn)
            try:
                batch = next(self._batches, _NONE)
            except Exception:
                let_loaders_end()  # a signal to all processes ends several: the next one's would hit sys.excepthook
                raise
            if batch is not _NONE:
                self._sampler.took(self._turn)
                return batch
            self._begin(self._sampler.after(self._turn))
        raise StopIteration

    def _why_empty(self) -> str:
        """For a loop that calls next() itself, and is ended by it."""
        if program.loop.ended is not None:
            return f"training has ended: {program.loop.ended}"
        if not self._turn.skipped:
            return ""
        return (
            f"epoch {self._turn.epoch} is over, and the job goes on in a later one. Begin the loop with 'for epoch in "
            "tributary.torch.epochs(n)', which begins where the job is"
        )

    def __len__(self) -> int:
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


def _source(loader: Any) -> Any:
    """Takes samples of a sampler, and makes batches of them: a batch sampler, or the loader itself."""
    batches = getattr(loader, "batch_sampler", None)
    source = loader if batches is None else batches
    inner = getattr(source, "batch_sampler", None)
    return inner if isinstance(getattr(inner, "sampler", None), DistributedSampler) else source


def sampler_of(loader: Any) -> Any:
    """None: it has none."""
    return getattr(_source(loader), "sampler", None)


def _count(kind: type[DataLoader[Any]]) -> None:
    """From now on iterators of such loaders count."""
    iterate = kind.__iter__

    def iterator(loader: DataLoader[Any]) -> Iterator[Any]:
        sampler = sampler_of(loader)
        if not isinstance(sampler, DistributedSampler):
            program.loop.has_other_loaders = True
            return iterate(loader)
        if _held_back(loader):
            sampler.ahead = 1
        source, around = _source(loader), loader.batch_sampler
        if source is not loader and source is not around:  # Accelerate's skip_first_batches(): the sampler skips, too
            around.skip_batches = 0  # type: ignore[union-attr]
        return Batches(source, sampler, lambda: iterate(loader))

    kind.__iter__ = iterator  # type: ignore[assignment,method-assign]


def _of_subclass(kind: type[DataLoader[Any]], /, **options: Any) -> None:
    super(DataLoader, kind).__init_subclass__(**options)
    if kind.__name__ == "StatefulDataLoader":  # torchdata's, which iterates by itself
        _count(kind)


def _held_back(loader: DataLoader[Any]) -> bool:
    """Returns whether a wrapper draws each batch before it gives out the one before, as Accelerate's loaders do. A
    wrapper registers with its GradientState when an iteration begins. Its loader is ``base_dataloader``, or (before
    0.30) itself.
    """
    state: Any = sys.modules.get("accelerate.state")
    begins = state.GradientState().active_dataloader if state is not None else None
    return begins is not None and loader in (begins, getattr(begins, "base_dataloader", None))


_count(DataLoader)
DataLoader.__init_subclass__ = classmethod(_of_subclass)  # type: ignore[assignment]
for _kind in DataLoader.__subclasses__():
    if _kind.__name__ == "StatefulDataLoader":
        _count(_kind)
