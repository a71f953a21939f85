"""DistributedSampler: which samples a rank sees."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any

import torch
from torch.utils.data import Sampler

from tributary.torch._base.log import logger
from tributary.torch._run.program import program, replica, replicas


class Turn:
    """A part of one iteration of a sampler: of one epoch, from some sample on.

    Attributes:
        number: iterations that were before, since the job began.
        start: samples of the epoch that all ranks had taken before.
        until: the epoch that the iteration ends with.
        batches: that have reached the loop.
        size: samples of a batch.
        ends_short: a last round may have smaller batches.
        rounds: that were trained with batches of it.
        over: the loop knows that there is no batch any more.
    """

    def __init__(
        self,
        number: int,
        epoch: int,
        start: int,
        size: int,
        per_round: int,
        *,
        until: int | None = None,
        ends_short: bool = False,
    ) -> None:
        self.number = number
        self.epoch = epoch
        self.start = start
        self.until = epoch if until is None else until
        self.size = size
        self.per_round = per_round
        self.ends_short = ends_short and per_round == 1
        self.world, self.rank = replicas(), replica()
        self.began = program.round
        self.batches = 0
        self.rounds = 0
        self.over = False
        self.skipped = False  # in an earlier process it was over

    def then(self, number: int, epoch: int, start: int, until: int) -> Turn:
        """Returns the next turn of the same iteration."""
        return Turn(number, epoch, start, self.size, self.per_round, until=until, ends_short=self.ends_short)

    def dealt(self, ahead: int) -> int:
        """Samples of the epoch that all ranks have taken, if the loop holds back so many batches."""
        return self.start + max(0, self.batches - (0 if self.over else ahead)) * self.size * self.world

    def count(self, length: int) -> int:
        """Batches of this rank, of a data set of so many samples."""
        whole, rest = self._rounds(length)
        return whole * self.per_round + (rest > 0)

    def _rounds(self, length: int) -> tuple[int, int]:
        """Whole rounds, and the samples of a batch in a smaller one, if the epoch began with other ranks or batches."""
        round = self.size * self.world * self.per_round
        whole, rest = divmod(max(0, length - self.start), round)
        return whole, rest // self.world if self.ends_short and self.start % round else 0

    def places(self, batch: int, length: int) -> torch.Tensor:
        """Where in the epoch's order a batch lies: a round's batches are those of neighbouring ranks."""
        round, part = divmod(batch, self.per_round)
        whole, rest = self._rounds(length)
        ranks = self.world * self.per_round
        place = torch.arange(self.size if round < whole else rest) * ranks + self.rank * self.per_round + part
        return self.start + round * self.size * ranks + place


class DistributedSampler(Sampler[int]):
    """Deals a data set out to ranks, and continues where the job is.

    Batch b of all ranks together is ``order[b * B * W : (b + 1) * B * W]`` of the epoch's order (B samples a batch, W
    ranks), whatever the nodes are. With ``accumulate=k`` a round's k batches are those of k ranks, so that one process
    sees what k ranks would. The rest of an epoch that makes no full round is dropped.

    A process that continues takes the rest of the epoch that was open, also with another number of ranks, other
    batches or another ``accumulate``. Its iterations before are empty, as ``for epoch in range(n)`` needs them. A loop
    that begins with :func:`tributary.torch.epochs` or :func:`tributary.torch.rounds` has no empty iterations. A sampler
    that trains no rounds, as one for an evaluation, always has its whole epoch.

    Args:
        dataset: the data set; only its length is used.
        shuffle: deals in an order that follows from seed and epoch; else in the data set's.
        seed: the same on all ranks.
        batch_size: samples of a batch. None: the ``DataLoader``'s.
        accumulate: batches a round. None: the :class:`DistributedOptimizer`'s.
        ahead: batches that the loop draws before it trains the one before. Accelerate's is known.

    Raises:
        ValueError: the job continues in data of another length, or of another seed.
    """

    def __init__(
        self,
        dataset: Sized,
        *,
        shuffle: bool = True,
        seed: int = 0,
        batch_size: int | None = None,
        accumulate: int | None = None,
        ahead: int = 0,
    ) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.ahead = ahead
        self._batch_size = batch_size
        self._accumulate = accumulate
        self._epoch: int | None = None  # that set_epoch() said for the next iteration
        self._turn: Turn | None = None  # the last one
        self._next: Turn | None = None  # that a DataLoader iterates
        self._open: dict[str, Any] | None = None  # the place of an earlier process
        self._first: dict[str, Any] | None = None  # the place where this process began
        self._drawn = False  # a batch since the last round
        self._trains = False
        self._has_trained = False  # rounds of this process
        self._rewinds = program.rewinds
        self._told_left = False
        self._nth = 0  # of those of the same data
        self.go_on(program.loop.place_of(self))
        # Made again for each epoch: it takes the place of one that trained with the same data.
        for before in [one for one in program.loop.samplers if one.has_trained(self.data())]:
            before._trains, self._trains = False, True
        program.loop.add_sampler(self)

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is of this epoch. Without it, each is of the epoch after the last one's."""
        self._epoch = epoch

    def __len__(self) -> int:
        """How many samples this rank has in a whole epoch."""
        size = self._batch_size or 1
        return Turn(0, 0, 0, size, self._per_round()).count(len(self.dataset)) * size

    def _per_round(self) -> int:
        return self._accumulate or program.accumulate

    # ---- its place

    @property
    def trains(self) -> bool:
        """Whether rounds are trained with its batches, as far as is known: an evaluation is between two rounds."""
        known = [sampler for sampler in program.loop.samplers if sampler._trains]
        return self._trains or (not known and self._turn is not None and self._turn.rounds > 0)

    @property
    def beginning(self) -> dict[str, Any] | None:
        """The place of a job that goes back to its beginning; None: no round was trained with it."""
        first = self._first or {"turn": 0, "epoch": 0, "dealt": 0}  # an earlier process was there
        return {**first, "nth": self._nth, **self.data()} if self.trains else None

    @property
    def begins(self) -> bool:
        """Whether no batch of its turn has reached the loop."""
        return self._turn is not None and self._turn.batches == 0

    @property
    def is_over(self) -> bool:
        """Whether all batches of its turn have reached the loop, which has asked for another one."""
        return self._turn is not None and self._turn.over

    @property
    def open_epoch(self) -> int | None:
        """The epoch that the loop is in; None: it is in none."""
        place = self.place()
        return None if place is None else int(place["epoch"])

    def round_leaves(self, last: bool) -> bool:
        """Whether it gave batches since the last round. last: it gave the last of all."""
        drew, self._drawn = self._drawn, False
        if drew and self._turn is not None:
            self._turn.rounds += 1
            self._has_trained = True
            # An evaluation is between two rounds, and has come to its end.
            self._trains = self._trains or self._turn.rounds > 1 or (last and not self._turn.over)
        return drew

    def is_nth(self, nth: int) -> None:
        """Sets its number among the living samplers of the same data; counted when a round leaves."""
        self._nth = nth

    def place(self, ends: bool = False) -> dict[str, Any] | None:
        """Returns the state that a process needs to continue; None: it begins at the start.

        Args:
            ends: the loop has done what it does after an epoch.
        """
        turn = self._turn
        if turn is None or (self._open is not None and turn.number < self._open["turn"]):
            return self._open
        if not self.trains:
            return None
        if ends and turn.over:
            return {"turn": turn.number + 1, "epoch": turn.epoch + 1, "dealt": 0, "nth": self._nth, **self.data()}
        return {
            "turn": turn.number,
            "epoch": turn.epoch,
            "dealt": turn.dealt(self.ahead),
            "nth": self._nth,
            **self.data(),
        }

    def data(self) -> dict[str, Any]:
        """Which data, in which order."""
        return {"samples": len(self.dataset), "seed": self.seed if self.shuffle else None}

    def has_trained(self, data: dict[str, Any]) -> bool:
        """Whether this process has trained rounds with its batches, and those are its data."""
        return self._trains and self._has_trained and self.is_of(data)

    def is_of(self, place: dict[str, Any]) -> bool:
        return all(place[key] == value for key, value in self.data().items())

    def is_at(self, place: dict[str, Any]) -> bool:
        """Whether a place is of this sampler, and of the epoch that it is in."""
        turn = self._turn
        return self.is_of(place) and self._nth == place["nth"] and turn is not None and turn.number == place["turn"]

    def jump(self, place: dict[str, Any]) -> None:
        """To another place in the epoch, if it is another one."""
        if self._turn is not None and self._turn.dealt(self.ahead) != place["dealt"]:
            self._open, self._rewinds = place, -1

    def go_on(self, place: dict[str, Any] | None) -> None:
        """From a place that was kept."""
        self._open = place
        self._trains = place is not None

    # ---- iterations

    def begin(self, size: int | None, drop_last: bool = False) -> Turn:
        """The next iteration, in batches of so many samples. drop_last: smaller ones do not reach the loop.

        Raises:
            ValueError: the size is not known, there are too few samples, or the loop's epoch is not the job's.
        """
        size = self._batch_size or size
        if size is None:
            raise ValueError(
                "DistributedSampler: how many samples a batch has is not known; give it to a DataLoader with "
                "batch_size=, or pass batch_size= to the sampler"
            )
        self._batch_size = size
        per_round = self._per_round()
        if Turn(0, 0, 0, size, per_round).count(len(self.dataset)) == 0:
            raise ValueError(
                f"DistributedSampler: {len(self.dataset)} samples make no round of {replicas()} ranks with "
                f"{per_round} batches of {size}: choose smaller batches"
            )
        if self._went_back() and program.loop.told and self._open is not None:
            self._turn = None
        if self._turn is None and self._open is None and program.loop.samplers[0] is self:
            self._open = self._by_rounds(size, per_round)
        number, epoch, start = self._following()
        said, self._epoch = self._epoch, None
        if said is not None and said != epoch:
            epoch, start = said, 0
        place, skipped = self._open, False
        if place is not None:
            if program.loop.told:
                number = max(number, place["turn"])
            if number > place["turn"]:
                self._open = None
            elif number < place["turn"]:
                start, skipped = len(self.dataset), True
            elif said is not None and said != place["epoch"]:
                raise ValueError(
                    f"set_epoch({said}), but the job goes on in epoch {place['epoch']}: count epochs with "
                    "'for epoch in tributary.torch.epochs(n)'"
                )
            else:
                epoch, start = place["epoch"], place["dealt"]
        if program.loop.ended is not None and self.trains:
            start, skipped = len(self.dataset), True
        self._turn = Turn(number, epoch, start, size, per_round, ends_short=not drop_last)
        self._turn.skipped = skipped
        if self._first is None and place is None:
            self._first = {"turn": number, "epoch": epoch, "dealt": start}
        return self._turn

    def _by_rounds(self, size: int, per_round: int) -> dict[str, Any] | None:
        """The place in a program that continues without one: every round took as many batches as the next one will."""
        before = program.loop.batches_before
        if not before:
            return None
        turn, batches = divmod(before, Turn(0, 0, 0, size, per_round).count(len(self.dataset)))
        return {"turn": turn, "epoch": turn, "dealt": batches * size * replicas(), "nth": self._nth, **self.data()}

    def _following(self) -> tuple[int, int, int]:
        """Number, epoch and start of the iteration after the last one."""
        last = self._turn
        if last is None:
            return 0, 0, 0
        if not last.over and last.began == program.round and not last.skipped:
            program.loop.looks = True
            return last.number, last.epoch, last.start
        left = not last.over and last.batches < last.count(len(self.dataset))
        if left and self._trains and not self._told_left and program.loop.ended is None:
            self._told_left = True
            logger.warning(
                "epoch %d was left after %d of %d batches. A process that goes on takes what is left of an open epoch, "
                "and does not know the loop's own count of batches: count by the optimizer's round",
                last.epoch,
                last.batches,
                last.count(len(self.dataset)),
            )
        return last.number + 1, last.until + 1, 0

    def tops(self, turn: Turn) -> None:
        """The loop wants a batch. If there is none any more, what it does then belongs to the round before."""
        over = turn.epoch == turn.until and turn.batches >= turn.count(len(self.dataset))
        if not turn.skipped and not (over and program.loop.arrived):
            program.loop.top(self)

    def moved(self, turn: Turn) -> bool:
        """Whether other batches come next than those of the turn: the job went back, has other ranks, or has ended."""
        if program.loop.ended is not None and self.trains:
            return True
        return self._rewinds != program.rewinds or (turn.world, turn.rank) != (replicas(), replica())

    def again(self, turn: Turn) -> Turn | None:
        """Returns the turn that replaces one that moved; None: the loop goes to another epoch."""
        number, epoch, start = turn.number, turn.epoch, turn.dealt(self.ahead)
        if program.loop.ended is not None:
            program.loop.top(self)
            return None
        if self._went_back() and self._open is not None:
            if program.loop.changes_epoch:
                self._turn = None
                return None
            number, epoch, start = self._open["turn"], self._open["epoch"], self._open["dealt"]
            if epoch < turn.epoch and not program.loop.told:
                logger.warning(
                    "the job went back over the end of epoch %d. What the loop does between epochs is not done again: "
                    "count them with 'for epoch in tributary.torch.epochs(n)'",
                    epoch,
                )
        self._turn = turn.then(number, epoch, start, max(turn.until, epoch))
        return self._turn

    def _went_back(self) -> bool:
        """Whether the job did since an iteration of this sampler looked last."""
        before, self._rewinds = self._rewinds, program.rewinds
        return before != self._rewinds

    def after(self, turn: Turn) -> Turn | None:
        """Returns the turn after one that has reached the loop completely; None: the iteration is over."""
        if turn.epoch < turn.until:
            self._turn = turn.then(turn.number + 1, turn.epoch + 1, 0, turn.until)
            return self._turn
        turn.over = True
        return None

    def took(self, turn: Turn) -> None:
        """A batch of the turn has reached the loop."""
        turn.batches += 1
        self._drawn = True
        program.loop.last = self
        program.loop.samples += turn.size

    def indices(self, turn: Turn) -> Iterator[list[int]]:
        """Yields the indices of each batch of a turn."""
        order = self._order(turn.epoch)
        for batch in range(turn.count(len(self.dataset))):
            yield order[turn.places(batch, len(order))].tolist()

    def _order(self, epoch: int) -> torch.Tensor:
        if not self.shuffle:
            return torch.arange(len(self.dataset))
        generator = torch.Generator()
        generator.manual_seed(self.seed + epoch)
        return torch.randperm(len(self.dataset), generator=generator)

    def for_loader(self, turn: Turn) -> None:
        """Until its first batch each iter() is a DataLoader's, which counts itself what reaches the loop."""
        self._next = turn

    def __iter__(self) -> Iterator[int]:
        turn = self._next
        if turn is not None and turn is self._turn and turn.batches == 0:
            return (index for indices in self.indices(turn) for index in indices)
        return self._by_hand(self.begin(None))

    def _by_hand(self, first: Turn) -> Iterator[int]:
        turn: Turn | None = first
        while turn is not None:
            batches = self.indices(turn)
            while True:
                if self.moved(turn):
                    turn = self.again(turn)
                    break
                self.tops(turn)
                indices = next(batches, None)
                if indices is None:
                    turn = self.after(turn)
                    break
                self.took(turn)
                yield from indices
