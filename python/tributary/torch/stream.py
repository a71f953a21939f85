"""Batches that no DistributedSampler deals out: of streams, of samplers of one's own, of ranks with unequal data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from tributary.torch._base import complaints
from tributary.torch._base.exceptions import Rewound
from tributary.torch._base.log import logger
from tributary.torch._base.seed import generators, set_generators
from tributary.torch._loaders.batches import sampler_of
from tributary.torch._run.program import program, rank
from tributary.torch.sampler import DistributedSampler

_NONE = object()


class Stream:
    """An iterable of a loader's batches, whose place is kept with each round.

    Args:
        loader: of this rank's batches.
        until: whose data end an iteration.
        name: of the place.
    """

    def __init__(self, loader: Iterable[Any], until: str, name: str) -> None:
        self.loader = loader
        self.until = until
        self._name = name
        self._has_state = all(callable(getattr(loader, call, None)) for call in ("state_dict", "load_state_dict"))
        self._turn = -1  # of the iteration, since the job began
        self._last = -1  # the turn that the loop asked for: when the job goes back there are others before it
        self._taken = 0  # batches of the turn that have reached the loop
        self._ended = False  # the loader has no more of this turn
        self._over = False  # and the loop knows
        self._began: dict[str, Any] | None = None  # random generators when the turn did
        self._batches: Iterator[Any] | None = None
        self._place: dict[str, Any] | None = None  # where the next iteration continues
        self._goes_on = False  # in an earlier process it had batches
        self._spare: Any = _NONE
        self._void = _Void()

    # ---- its place

    @property
    def counts(self) -> bool:
        """Whether the last batch does: one that is given once more, because this rank's data are over, does not."""
        return not self._void.is_open

    @property
    def trains(self) -> bool:
        """Whether the loop has begun to take its batches."""
        return self._turn >= 0

    @property
    def is_over(self) -> bool:
        """Whether all batches of its turn have reached the loop, which has asked for another one."""
        return self._over

    def follow(self, before: Stream) -> None:
        """It takes the place of another one of this process."""
        self._turn, self._last, self._spare = before._turn, before._last, before._spare
        if before._place is not None:
            self.load_state_dict(before._place)

    def state_dict(self) -> dict[str, Any]:
        """The place after the last batch."""
        if self._place is not None:
            return self._place
        state = {"turn": max(0, self._turn), "taken": self._taken, "ended": self._ended, "generators": self._began}
        if self._over:
            state = {"turn": self._turn + 1, "taken": 0, "ended": False, "generators": None}
        return {**state, "loader": self._state_of_loader()}

    def _state_of_loader(self) -> Any:
        return self.loader.state_dict() if self._has_state else None  # type: ignore[attr-defined]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next batch is the one after that place."""
        self._place, self._batches, self._over = state, None, False
        if self._has_state and state["loader"] is not None:
            self.loader.load_state_dict(state["loader"])  # type: ignore[attr-defined]

    # ---- iterations

    def __iter__(self) -> Iterator[Any]:
        if not self._begins():
            return
        try:
            while self._place is None or not program.loop.changes_epoch:
                batch = self._next()
                if batch is not _NONE:
                    yield batch
                elif self._over and self._turn < self._last:
                    self._turn, self._over, self._batches = self._turn + 1, False, None
                elif self._over:
                    return
        finally:
            self._void.close()

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def _begins(self) -> bool:
        """Whether the turn that the loop asks for is not over in an earlier process."""
        told, place = program.loop.told, self._place
        if program.loop.ended is not None:
            return False
        self._turn = self._turn + 1 if place is None or not told else place["turn"]
        self._last = self._turn
        if place is not None and self._turn < place["turn"]:
            return False
        if place is None:
            self._batches, self._over = None, False
        return True

    def _next(self) -> Any:
        """The next batch. _NONE: the turn is over, or the job went back."""
        self._void.close()
        program.loop.stream_top()
        if program.loop.ended is not None:
            self._over, self._last = True, self._turn
            return _NONE
        if self._batches is None:
            self._batches = self._opened()
        batch = _NONE if self._ended else next(self._batches, _NONE)
        self._ended = batch is _NONE
        goes_on = self._agreed(not self._ended)
        if goes_on is None:
            return _NONE
        if not goes_on:
            self._over = True
            return _NONE
        if self._ended:
            batch = self._given_again()
            self._void.open()
        else:
            self._taken += 1
            self._spare = batch
        return batch

    def _opened(self) -> Iterator[Any]:
        """Iterates over the loader's batches from the place. A process that continues has the top's generators."""
        place, self._place = self._place, None
        here = generators()
        if place is not None:
            self._turn = place["turn"]
            self._state_of_loader()  # for which torchdata's makes an iterator, with random numbers
            set_generators(here)
        if place is None or place["generators"] is None:  # the turn begins
            self._taken, self._ended, self._began = 0, False, here
            return iter(self.loader)
        if self._turn < self._last and not program.loop.told:
            logger.warning(
                "the job went back over the end of iteration %d of batches(). What the loop does between epochs is not "
                "done again: count them with 'for epoch in tributary.torch.epochs(n)'",
                self._turn,
            )
        self._goes_on = True
        self._taken, self._ended, self._began = place["taken"], place["ended"], place["generators"]
        batches = iter(()) if self._ended else iter(self.loader) if self._has_state else self._gone_through()
        set_generators(here)
        return batches

    def _gone_through(self) -> Iterator[Any]:
        """The loader's batches after those that the loop has had."""
        assert self._began is not None
        set_generators(self._began)
        batches = iter(self.loader)
        if self._taken:
            logger.info("rank %d: goes through its loader again, to its place after batch %d", rank(), self._taken)
        for _ in range(self._taken):
            next(batches, None)
        return batches

    def _agreed(self, has_batch: bool) -> bool | None:
        """Whether the turn continues. None: the job went back meanwhile."""
        if self.until == "own":
            return has_batch
        before = program.rewinds
        try:
            given = program.values.gather(f"batches(until={self.until!r}, name={self._name!r})", has_batch)
        except Rewound:
            return None
        if program.rewinds != before or program.loop.ended is not None:
            return None
        return any(given) if self.until == "all" else all(given)

    def _given_again(self) -> Any:
        """A batch that counts nothing."""
        if self._spare is _NONE and self._goes_on:
            here, state = generators(), self._state_of_loader()
            self._spare = next(iter(self.loader), _NONE)
            if state is not None:
                self.loader.load_state_dict(state)  # type: ignore[attr-defined]
            set_generators(here)
        if self._spare is _NONE:
            raise RuntimeError(
                f"batches(): rank {rank()} has no batch at all, while others train: give each rank at least one, or "
                "pass until='first', which ends an iteration when the first rank has no more"
            )
        return self._spare


class _Void:
    """An iteration of the loop whose batch counts nothing. Gradients are zeros, and what else the batch changes on this
    rank is as before when the iteration is over.
    """

    def __init__(self) -> None:
        self.is_open = False
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._generators: dict[str, Any] = {}

    def open(self) -> None:
        self._generators = generators()
        for link in program.jobs.open:
            link.place.hold_own()
            self._hooks += [p.register_hook(torch.zeros_like) for p in link.parameters if p.requires_grad]
        self.is_open = True

    def close(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        set_generators(self._generators)
        for link in program.jobs.open:
            link.place.undo()


def batches(loader: Iterable[Any], *, until: str = "all", name: str = "batches") -> Stream:
    """The batches of a loader that has no :class:`DistributedSampler`: a stream, or a sampler of one's own.

    .. code-block:: python

        for epoch in trib.epochs(10):
            for x, y in trib.batches(loader):
                ...

    For the loop that trains. Ranks may have different numbers of batches. Each ``next()`` waits until all ranks have
    reported whether they have another one.

    The place is kept with each round. A loader with ``state_dict()`` and ``load_state_dict()`` (torchdata's
    ``StatefulDataLoader``) continues by them. Another one is gone through again, up to the place, with the random
    generators that it began with: it must give the same batches then.

    Args:
        loader: an iterable of this rank's batches.
        until: ``"all"``: the iteration ends when all ranks' data have ended. A rank without data gets its last batch
            again, which counts nothing: the gradient is the mean over ranks that have data. ``"first"``: it ends when
            the first rank has no more. ``"own"``: each rank's with its own data; no rank waits, and a job stops where
            its ranks make different numbers of rounds.
        name: the place's name, for loops that take batches of several loaders at once.

    Returns:
        An iterable. Its ``counts`` is False while the loop has a batch that counts nothing; :func:`log` and
        :func:`metric` leave that out by themselves.

    Raises:
        ValueError: an unknown ``until``; the loader has a :class:`DistributedSampler`.
        RuntimeError: while iterated: this rank has never had a batch.
        tributary.Error, Stopped: while iterated: as :func:`all_reduce`.
    """
    complaints.one_of("until", until, ("all", "first", "own"))
    if isinstance(sampler_of(loader), DistributedSampler):
        raise ValueError("batches(): the loader has a DistributedSampler, which knows its place: iterate the loader")
    before = program.loop.streams.get(name)
    if before is not None and before.loader is loader:
        before.until = until
        return before
    stream = Stream(loader, until, name)
    program.loop.add_stream(name, stream)
    return stream
