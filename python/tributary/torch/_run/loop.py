"""The loop of a program: its place in its data, and the objects that are kept with the place.

A loop passes two points in each round. When the round *leaves*, its forward passes are done. At the *top* the loop
takes the next batch; if it takes none from a sampler of ours, the top is the round's first gradient. The loop's work
between the two points (schedulers, averages, an evaluation) belongs to the round before.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable

import torch

from tributary.torch._base import plain
from tributary.torch._base.plain import NOTHING, Packed
from tributary.torch._base.seed import generators, set_generators
from tributary.torch._steps import schedulers

if TYPE_CHECKING:
    from tributary.torch._run.values import Values
    from tributary.torch.sampler import DistributedSampler
    from tributary.torch.stream import Stream


@dataclass(frozen=True)
class Top:
    """A top from which a program continues.

    Attributes:
        number: of tops that the program came to before, also in earlier processes.
        loop: its state.
        jobs: each open job's own state (Place.part).
    """

    number: int
    loop: Packed
    jobs: dict[str, dict[str, Any]]

    def plain(self, leaves: str = "") -> dict[str, Any]:
        """To be kept. leaves: a job whose round leaves, so that what it has of its own is another."""
        jobs = {name: {**part, "own": NOTHING} if name == leaves else part for name, part in self.jobs.items()}
        return {"number": self.number, "loop": self.loop, "jobs": jobs}

    @property
    def size(self) -> int:
        """Bytes, about."""
        own = [one for part in self.jobs.values() for one in (part["own"], part["alike"]) if one is not None]
        return self.loop.size + sum(one.size for one in own)

    @property
    def whole(self) -> bool:
        """With what all ranks have alike, of each job whose optimizer steps here."""
        return all(part["alike"] is None or part["alike"] for part in self.jobs.values())

    @property
    def begins(self) -> bool:
        """Whether it is the beginning of all jobs."""
        return not any(part["round"] for part in self.jobs.values())


class Loop:
    """The state of the program's one loop, whatever jobs it trains.

    Args:
        passes_top: called when the loop takes a batch.
        values: the values that ranks gather.

    Attributes:
        told: the loop begins where the job is, because it asked where that is (epochs(), rounds()).
        epoch: the current epoch of epochs().
        samples: samples that this rank has taken from samplers.
        arrived: the loop has passed its top since it continued from a state.
        streams: the streams whose batches it takes, by name.
        has_other_loaders: the loop has taken batches of a DataLoader that no sampler of ours deals out.
        looks: the last batch was only looked at: the loop begins the same iteration again.
        last_top: the top that all kept state names.
        first_top: the top that the jobs began at: without a snapshot they go back there.
        ended: why training ends before the loop does, because a rank said so; None: it does not.
    """

    def __init__(self, passes_top: Callable[[], None], values: Values) -> None:
        self.told = False
        self.ended: str | None = None
        self.epoch: int | None = None
        self._counts = False  # epochs() is in one
        self._next_epoch: int | None = None  # that epochs() is to give, because the job went there
        self.samples = 0
        self.looks = False
        self.streams: dict[str, Stream] = {}
        self.has_other_loaders = False
        self._passes_top = passes_top
        self._samplers: list[weakref.ref[DistributedSampler]] = []
        self.last: DistributedSampler | None = None  # that a batch was taken from
        self._training: list[DistributedSampler] = []  # at the program's end their function may have returned
        self._objects: dict[str, Any] = {"values of all ranks": values}
        self._given: dict[str, Any] | None = None  # state from which the program continues
        self._claimed = False  # a place of that: a sampler has it
        self._goes_on = False  # a round has left since: there are other places now
        self.batches_before = 0  # of each rank, in rounds of which nothing is kept
        self._generators: dict[str, Any] | None = None  # of the state that the first round begins with
        self.arrived = True
        self.last_top: Top | None = None
        self.first_top: Top | None = None
        self._tops = 0
        self._left: dict[str, Any] | None = None  # when the last round did, until the next one's first gradient
        self._topped = False  # it has come to its top since then

    # ---- what it has

    @property
    def draws(self) -> bool:
        """Whether it takes batches from samplers or streams of ours."""
        return any(one.trains for one in self._sources)

    @property
    def _sources(self) -> list[DistributedSampler | Stream]:
        return [*self.samplers, *self.streams.values()]

    @property
    def begins_data_anew(self) -> bool:
        """Whether a process that continues takes batches from the beginning of its data."""
        knows = self.draws or any(_is_loader(thing) for thing in self._objects.values())
        return self.has_other_loaders and not knows and (self._counts or not self.told)

    @property
    def is_void(self) -> bool:
        """Whether it has a batch that counts nothing."""
        return not all(one.counts for one in self.streams.values())

    def add_stream(self, name: str, stream: Stream) -> None:
        """In place of the one of that name that there was."""
        key, before = f"batches {name}", self.streams.get(name)
        self._objects[key] = self.streams[name] = stream
        if before is not None:
            stream.follow(before)
        elif self._given is not None and not self._goes_on and key in self._given["objects"]:
            stream.load_state_dict(self._given["objects"][key])
        if self._left is not None and not self._topped:
            self._left = {**self._left, "loaders": self._loaders()}

    def add_sampler(self, sampler: DistributedSampler) -> None:
        self._samplers.append(weakref.ref(sampler))

    @property
    def samplers(self) -> list[DistributedSampler]:
        """In the order in which they were made."""
        return [sampler for known in self._samplers if (sampler := known()) is not None]

    def place_of(self, sampler: DistributedSampler) -> dict[str, Any] | None:
        """Where a sampler that was made now continues: as the one that had as many of the same data before it."""
        nth = self.nth(sampler)
        for place in [] if self._goes_on else self._places():
            if sampler.is_of(place) and place["nth"] == nth:
                self._claimed = True
                return place
        return None

    def _places(self) -> list[dict[str, Any]]:
        given = self._given["samplers"] if self._given is not None else []
        return [place for place in given if place is not None]

    def nth(self, sampler: DistributedSampler) -> int:
        """How many living samplers were made before it, of as many samples in the same order. One that is being made
        takes the place of those that have trained.
        """
        samplers, data = self.samplers, sampler.data()
        if sampler not in samplers:
            return sum(1 for one in samplers if one.is_of(data) and not one.has_trained(data))
        return sum(1 for one in samplers[: samplers.index(sampler)] if one.is_of(data))

    def keep(self, objects: dict[str, Any]) -> None:
        """Keeps objects that have a state. In a program that continues they get it at once.

        Raises:
            TypeError: one has no state, or one that cannot be kept.
        """
        for name, thing in objects.items():
            for method in ("state_dict", "load_state_dict"):
                if not callable(getattr(thing, method, None)):
                    raise TypeError(f"keep({name}=...): a {type(thing).__name__} has no {method}()")
            plain.packed(thing.state_dict(), f"keep({name}=...)")
            self._objects[name] = thing
            schedulers.add(thing)
            if self._given is not None and name in self._given["objects"]:
                thing.load_state_dict(self._given["objects"][name])

    # ---- its state

    def when_round_leaves(self) -> dict[str, Any]:
        """A loader is asked here: at the top its place may be that of the next batch."""
        self._generators, self._goes_on = None, True
        drew = [sampler for sampler in self.samplers if sampler.round_leaves(last=sampler is self.last)]
        self._training = [sampler for sampler in drew if sampler.trains] or self._training
        for sampler in drew:
            sampler.is_nth(self.nth(sampler))
        return self.now()

    def round_leaves(self) -> list[Any]:
        """Notes that a round of any job leaves. Returns the samplers' places."""
        self._left, self._topped = self.when_round_leaves(), False
        places: list[Any] = self._left["samplers"]
        return places

    def reaches_top(self, draws: bool) -> dict[str, Any] | None:
        """Its state at a new top, or if it takes the last one again. draws: the batch is not taken yet."""
        left = self._left
        if not draws:
            self._left = None
        if left is None or (self._topped and not (draws and self.looks)):
            return None
        self._comes_to_top()
        return self.at_top(left, draws)

    def begins(self) -> None:
        """Where it comes next is a new top: a job has begun here, of which the last one knows nothing."""
        self._left, self._topped = self.now(), False

    def ends(self) -> dict[str, Any] | None:
        """The state at the end of the program, which is a top, too. None: it is at the last one."""
        if self._left is None:
            return None
        self._comes_to_top()
        return self.at_end(self._left)

    def _comes_to_top(self) -> None:
        self._tops += not self._topped
        self._topped = True

    def note_top(self, state: dict[str, Any], jobs: dict[str, dict[str, Any]]) -> None:
        """From now on all that is kept names this top. jobs: what is each one's own."""
        self.last_top = Top(self._tops, plain.packed(state, "what belongs to the place in the data"), jobs)
        if self.last_top.begins:
            self.first_top = self.last_top

    def now(self) -> dict[str, Any]:
        return {"objects": {}, **self._place(), "loaders": self._loaders(), "looks": False, "at_top": False}

    def at_top(self, before: dict[str, Any], draws: bool) -> dict[str, Any]:
        """The same at the top. draws: the next batch is not taken yet."""
        # A first batch may be looked at only: a process that continues looks again.
        looks = draws and not self.looks and any(sampler.begins for sampler in self.samplers)
        place = {**self._place(), "at_top": True} if draws else {}
        return {**before, **place, "objects": self._states(loaders=False), "looks": looks}

    def at_end(self, before: dict[str, Any]) -> dict[str, Any]:
        """The same at the end of the program, which has done what follows its last round."""
        place = {**self._place(ends=True), "loaders": self._loaders(), "at_top": True}
        return {**before, **place, "objects": self._states(loaders=False), "looks": False}

    def _place(self, ends: bool = False) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "generators": generators(),
            "samplers": [sampler.place(ends) for sampler in self.samplers],
        }

    def _loaders(self) -> Packed:
        return plain.packed(self._states(loaders=True), "a loader that is kept")

    def _states(self, loaders: bool) -> dict[str, Any]:
        return {name: thing.state_dict() for name, thing in self._objects.items() if _is_loader(thing) == loaders}

    def go_on(self, top: Top, own: bool, reseed: Callable[[], None] | None = None) -> None:
        """From a top that was kept.

        Args:
            own: by this rank, whose random generators those are.
            reseed: sets generators as a step() does; None: it does not.
        """
        self.last_top, self._tops = top, top.number
        self._left, self._topped = None, True
        state = plain.unpacked(top.loop)
        state = {**state, "objects": {**state["objects"], **plain.unpacked(state["loaders"])}}
        self._given = state
        if not self._counts:
            self.epoch = state["epoch"]
        elif state["epoch"] is not None:
            over = state["epoch"] != self.epoch or any(one.trains and one.is_over for one in self._sources)
            self._next_epoch = state["epoch"] if over else None
        self._claimed = self._goes_on = False
        for sampler in self.samplers:
            sampler.go_on(self.place_of(sampler) or sampler.beginning)
        self._load_objects()
        self._load_objects(loaders=True)
        self._generators = state["generators"] if own else None
        if reseed is not None and not (own and state.get("at_top")):  # else they are of before the end of step()
            reseed()
            self._generators = generators()
        self.arrived = False
        self._set_generators()

    def comes_to(self, places: list[Any]) -> None:
        """It has gone through a round again, and samplers are where they were when it left."""
        for sampler in self.samplers:
            for place in places:
                if place is not None and sampler.is_at(place):
                    sampler.jump(place)

    def _load_objects(self, loaders: bool = False) -> None:
        """Loads the objects' states. Loaders get theirs only once: a draw from a loader has moved it."""
        given = self._given["objects"] if self._given is not None else {}
        for name, thing in self._objects.items():
            if name in given and _is_loader(thing) == loaders:
                thing.load_state_dict(given[name])

    def _set_generators(self) -> None:
        if self._generators is not None:
            set_generators(self._generators)

    def go_on_again(self) -> None:
        """Restores the state from which the loop continues: an iteration of no round has changed it."""
        if not self.arrived:
            self._load_objects()
            self._set_generators()

    def passed_top(self, draws: bool) -> None:
        """Generators are again as they were: what was done since the attach (an iterator is made) has moved them."""
        if not self.arrived and self._given is not None:
            self._load_objects()  # epochs that are over may have changed them
        if draws and (not self.arrived or (self.looks and self._given is not None and not self._given["looks"])):
            self._set_generators()
        self.arrived, self.looks = True, False

    def top(self, sampler: DistributedSampler) -> None:
        """The loop takes a batch of this sampler. One of an evaluation belongs to the round before."""
        if not sampler.trains and self.draws:
            return
        if not self.arrived and not self._claimed and (places := self._places()):
            raise ValueError(
                f"DistributedSampler: the job goes on in epoch {places[0]['epoch']} of {places[0]['samples']} samples "
                f"(seed {places[0]['seed']}), and the loop takes a batch of {len(sampler.dataset)} (seed "
                f"{sampler.seed}): give the same data and seed, or start another job with name="
            )
        self._passes_top()

    def stream_top(self) -> None:
        """The loop takes a batch of a stream."""
        self._passes_top()

    @property
    def changes_epoch(self) -> bool:
        """Whether epochs() gives another epoch next than the one after this."""
        return self._next_epoch is not None

    def epochs(self, count: int | None) -> Iterator[int]:
        self.told = True
        if self.epoch is None:
            self.epoch = next((one.open_epoch for one in self.samplers if one.open_epoch is not None), 0)
        self._counts, self._next_epoch = True, None
        while self.ended is None and (count is None or self.epoch < count):
            yield self.epoch
            self.epoch = self.epoch + 1 if self._next_epoch is None else self._next_epoch
            self._next_epoch = None
        self._counts = False


def _is_loader(thing: Any) -> bool:
    """Whether it has a place in data, which is that of the next batch at the top."""
    return hasattr(thing, "__iter__") and not isinstance(thing, torch.nn.Module)
