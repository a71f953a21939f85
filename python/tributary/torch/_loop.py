"""The loop of a program: where it is in its data, and what it wants to be kept beside.

A loop passes two points in each round. When the round *leaves*, its forward passes are done. At the *top* the loop
takes the next batch; if it takes none from a sampler of ours, the top is the round's first gradient. What the loop does
between them (schedulers, averages, an evaluation) belongs to the round before.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Callable

from tributary.torch import _plain
from tributary.torch._seed import generators, set_generators

if TYPE_CHECKING:
    from tributary.torch.sampler import DistributedSampler


class Loop:
    """What a program has one of, whatever jobs it trains.

    Args:
        passes_top: what jobs do when the loop is there; True: the next batch is not taken yet.

    Attributes:
        told: the loop begins where the job is, because it asked where that is (epochs(), rounds()).
        epoch: of epochs().
        samples: that this rank has taken from samplers.
        arrived: the loop has passed its top since it went on from a state.
        looks: the last batch was only looked at: the loop begins the same iteration again.
    """

    def __init__(self, passes_top: Callable[[bool], None]) -> None:
        self.told = False
        self.epoch: int | None = None
        self.samples = 0
        self.looks = False
        self._passes_top = passes_top
        self._samplers: list[weakref.ref[DistributedSampler]] = []
        self._training: list[DistributedSampler] = []  # at the program's end their function may have returned
        self._objects: dict[str, Any] = {}
        self._given: dict[str, Any] | None = None  # what the program goes on from
        self.batches_before = 0  # of each rank, in rounds of which nothing is kept
        self._generators: dict[str, Any] | None = None  # of the state that the first round begins with
        self.arrived = True

    # ---- what it has

    def add_sampler(self, sampler: DistributedSampler) -> None:
        self._samplers.append(weakref.ref(sampler))

    @property
    def samplers(self) -> list[DistributedSampler]:
        """In the order in which they were made."""
        return [sampler for known in self._samplers if (sampler := known()) is not None]

    def place_of_next(self) -> dict[str, Any] | None:
        """Where a sampler that is made now goes on."""
        places = self._given["samplers"] if self._given is not None else []
        return places[len(self._samplers)] if len(self._samplers) < len(places) else None

    def keep(self, objects: dict[str, Any]) -> None:
        """Objects that have a state. In a program that goes on they get it at once.

        Raises:
            TypeError: one has no state, or one that cannot be kept.
        """
        for name, thing in objects.items():
            for method in ("state_dict", "load_state_dict"):
                if not callable(getattr(thing, method, None)):
                    raise TypeError(f"keep({name}=...): a {type(thing).__name__} has no {method}()")
            _plain.encoded(thing.state_dict(), f"keep({name}=...)")
            self._objects[name] = thing
            if self._given is not None and name in self._given["objects"]:
                thing.load_state_dict(self._given["objects"][name])

    # ---- its state

    def when_round_leaves(self) -> dict[str, Any]:
        """A loader is asked here: at the top its place may be that of the next batch."""
        self._generators = None
        for sampler in self.samplers:
            sampler.round_is_complete()
        self._training = [sampler for sampler in self.samplers if sampler.trains]
        return self.now()

    def now(self) -> dict[str, Any]:
        loaders = _plain.encoded(self._states(loaders=True), "a loader that is kept")
        return {"objects": {}, **self._place(), "loaders": loaders, "looks": False, "at_top": False}

    def at_top(self, before: dict[str, Any], draws: bool) -> dict[str, Any]:
        """The same at the top. draws: the next batch is not taken yet."""
        # A first batch may be looked at only: a process that goes on looks again.
        looks = draws and not self.looks and any(sampler.begins for sampler in self.samplers)
        place = {**self._place(), "at_top": True} if draws else {}
        return {**before, **place, "objects": self._states(loaders=False), "looks": looks}

    @staticmethod
    def same_epoch(before: dict[str, Any], after: dict[str, Any]) -> bool:
        """Whether no epoch ended between the two."""

        def epochs(state: dict[str, Any]) -> list[Any]:
            return [state["epoch"], *(place["turn"] for place in state["samplers"] if place is not None)]

        return epochs(before) == epochs(after)

    def at_end(self, before: dict[str, Any]) -> dict[str, Any]:
        """The same at the end of the program, which has done what follows its last round."""
        place = {**self._place(ends=True), "at_top": True}
        return {**before, **place, "objects": self._states(loaders=False), "looks": False}

    def _place(self, ends: bool = False) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "generators": generators(),
            "samplers": [sampler.place(ends) for sampler in self.samplers],
        }

    def _states(self, loaders: bool) -> dict[str, Any]:
        return {
            name: thing.state_dict() for name, thing in self._objects.items() if hasattr(thing, "__iter__") == loaders
        }

    def go_on(self, state: dict[str, Any], own: bool, reseed: Callable[[], None] | None = None) -> None:
        """From a state that was kept.

        Args:
            own: by this rank, whose random generators those are.
            reseed: sets generators as a step() does; None: it does not.
        """
        state = {**state, "objects": {**state["objects"], **_plain.decoded(state["loaders"])}}
        self._given = state
        if self.epoch is None:  # a loop that goes back goes through epochs in one iteration
            self.epoch = state["epoch"]
        for sampler, place in zip(self.samplers, state["samplers"]):
            sampler.go_on(place or sampler.beginning)
        for name, thing in self._objects.items():
            if name in state["objects"]:
                thing.load_state_dict(state["objects"][name])
        self._generators = state["generators"] if own else None
        if reseed is not None and not (own and state.get("at_top")):  # else they are of before the end of step()
            reseed()
            self._generators = generators()
        self.arrived = False
        self._set_generators()

    def _set_generators(self) -> None:
        if self._generators is not None:
            set_generators(self._generators)

    def passed_top(self, draws: bool) -> None:
        """Generators are again as they were: what was done since the attach (an iterator is made) has moved them."""
        if draws and (not self.arrived or (self.looks and self._given is not None and not self._given["looks"])):
            self._set_generators()
        self.arrived, self.looks = True, False

    def top(self, sampler: DistributedSampler | None = None) -> None:
        """The loop takes a batch of this sampler; None: the first gradient of a round is there."""
        if sampler is None or sampler.trains or not any(one.trains for one in self.samplers):
            self._passes_top(sampler is not None)

    def epochs(self, count: int | None) -> Iterator[int]:
        self.told = True
        if self.epoch is None:
            self.epoch = next((one.open_epoch for one in self.samplers if one.open_epoch is not None), 0)
        while count is None or self.epoch < count:
            yield self.epoch
            self.epoch += 1
