"""The state that a rank keeps with each round, besides the parameters, to continue after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import torch

from tributary._errors import Error, Unavailable
from tributary._library import FirstState, Session
from tributary._library import Kept as KeptBytes
from tributary.torch._base import plain
from tributary.torch._base.log import logger
from tributary.torch._base.plain import LIMIT, NOTHING, Packed
from tributary.torch._run.alike import Alike
from tributary.torch._run.loop import Loop, Top
from tributary.torch._steps import optimizer_state
from tributary.torch._steps.schedulers import Schedulers

WHAT = "what belongs to the place in the data"
FIRST = 1 << 20  # bytes of the job's beginning that go with each round
BEFORE = 4 << 20  # bytes of the parameters that the open round began with


@dataclass(frozen=True)
class Kept:
    """The state kept with a round of a job.

    Attributes:
        top: the top from which the program continues.
        left: where samplers were when the round left, if the loop did not come to its top after it.
        own: the state that only this rank had then.
        before: the parameters that the round began with, if they were kept.
        mine: this rank kept it.
        dealt_alike: among as many ranks as there are now.
        earlier: the state kept when the round left, for ranks that start together and do not all have this top.
    """

    round: int
    top: Top
    left: list[Any] | None
    own: Packed
    before: list[torch.Tensor] | None
    mine: bool
    dealt_alike: bool
    earlier: Kept | None = None

    @property
    def position(self) -> int:
        """Progress of the loop: grows with tops, and with what comes between them."""
        return 2 * self.top.number + (self.left is None)

    def at(self, position: int) -> Kept:
        """State that was kept when the loop was no further than that."""
        return self.earlier if self.earlier is not None and self.position > position else self

    @property
    def is_computed_alike(self) -> bool:
        """Whether a loop that goes through the round once more computes what it did."""
        return self.before is not None and self.dealt_alike


class Place:
    """The state of one job's rank: of its program, of the schedulers of its optimizer, and of what only this rank has.

    A round's state is kept twice: before its first gradient is sent, because the round may be complete without this
    process, and again at the top of the loop, when the loop has done what belongs to the round (loop.py). Both name
    the program's last top. A process that continues from the first goes through the round once more without training,
    so that the loop does what belongs to it.

    Args:
        loop: the program's loop.
        schedulers: the schedulers of the job's optimizer.
        tensors: returns the tensors that this rank writes itself, by name: buffers.
        optimizer: whose state this rank has; None: servers have it.
        reseed: sets random generators for what follows a round, as the end of each step() does; None: it does not.
        alike: the state that is equal on all ranks; None: none is given to others.
        model_rank: which part of the model this rank holds. State of a single rank belongs to its part.

    Attributes:
        round: the round that left last, or after which the loop was at the top.
        unknown: why the kept state of the round after which this rank continues cannot be read.
        stepped: the newest round that an optimizer which steps here has stepped.
        before: returns the parameters that the open round began with.
        whole: whether the state that is equal on all ranks is to go with the rest, though it is large.
        starts_together: the state at a top has that of when the round left. Ranks that start together continue from the
            same one.
    """

    def __init__(
        self,
        loop: Loop,
        schedulers: Schedulers,
        tensors: Callable[[], dict[str, torch.Tensor]] = dict,
        optimizer: torch.optim.Optimizer | None = None,
        reseed: Callable[[int], None] | None = None,
        alike: Alike | None = None,
        model_rank: int = 0,
    ) -> None:
        self.loop = loop
        self.round = 0
        self.unknown = ""
        self.stepped = 0
        self.before: Callable[[], list[torch.Tensor]] = list
        self.whole: Callable[[], bool] = lambda: False
        self.starts_together = False
        self._reseed = reseed
        self._schedulers = schedulers
        self._tensors = tensors
        self._optimizer = optimizer
        self._alike = alike
        self._model_rank = model_rank
        self._beginning = NOTHING  # of the job, as this rank gave it
        self._kept: dict[int, tuple[Packed, bool]] = {}  # of the last rounds, and whether they are whole
        self._left = (0, NOTHING)  # a round, and what was kept when it left
        self._own = NOTHING  # what only this rank has
        self._copies: dict[str, Any] = {}  # the same of a GPU, when the round left
        self._given: dict[str, Any] | None = None  # of schedulers, until the loop is at its top

    @property
    def is_dealt(self) -> bool:
        """Whether samplers deal out what rounds are trained with."""
        return any(sampler.trains for sampler in self.loop.samplers)

    # ---- keeping

    def round_leaves(self, session: Session | None, name: str, round: int) -> None:
        """The first gradient of a round of the job is about to be sent: it may be complete from now on. Without a
        session it is complete, and nothing is sent.
        """
        self.round = round
        self._schedulers.find()
        left = self.loop.round_leaves()
        if session is not None:
            self.note_own()
            self._keep(session, name, left)

    def at_top(self) -> None:
        """The loop begins its next iteration: objects that continue from a state have it now."""
        if self._given is not None:
            given, self._given = self._given, None
            self._schedulers.load(given)

    def part(self) -> dict[str, Any]:
        """Returns this job's own state at the loop's top."""
        self._schedulers.find()
        if self._copies:
            self._encode_own(self._copies)
        return {
            "round": self.round,
            "schedulers": self._schedulers.state(),
            "own": self._own,
            "alike": self._alike_now(whole=self.whole()) if self.steps_here else None,
        }

    @property
    def steps_here(self) -> bool:
        return self._alike is not None and self._alike.steps_here

    def _alike_now(self, whole: bool) -> Packed:
        assert self._alike is not None
        if not whole and not self._alike.goes_with_rounds:
            return NOTHING
        return plain.packed(self._alike.state(), "the state of an optimizer that steps here")

    def keep_top(self, session: Session) -> None:
        """The loop is at its top after the round."""
        if self.round:
            self._keep(session, "", None)

    def keep_again(self, session: Session, round: int) -> None:
        """In a view that begins after a round: what was kept when the one before had ended is nowhere else."""
        self._kept = {of: kept for of, kept in self._kept.items() if of in (round, round + 1)}
        gives = session.view().first_state == FirstState.GIVEN
        if gives and self.steps_here and round in self._kept:
            self._kept[round] = self._with_alike(self._kept[round][0])
        for of in sorted(self._kept):
            self._give(session, of, *self._kept[of])
        if gives and round not in self._kept:
            self._give(session, round, NOTHING, True)  # for the others' answer

    def keep_whole(self, session: Session) -> None:
        """Gives the whole state: the job stops after a round, and this rank learns it when it has begun another one."""
        kept = self._kept.get(self.stepped)
        if self.steps_here and kept is not None and not kept[1]:
            self._give(session, self.stepped, *self._with_alike(kept[0]))

    def _with_alike(self, kept: Packed) -> tuple[Packed, bool]:
        """Since the top that it names this rank has not stepped."""
        state = plain.unpacked(kept)
        for part in state["top"]["jobs"].values():
            if part["alike"] is not None and not part["alike"] and part["round"] == self.stepped:
                part["alike"] = self._alike_now(whole=True)
        return plain.packed(state, WHAT), _is_whole(state)

    def note_own(self) -> None:
        """Notes what only this rank has, because the next forward pass writes it. A GPU's tensors are copied there, and
        read at the loop's top, because reading holds the GPU up. Until then those of the round before count. A batch
        that counts nothing changes nothing.
        """
        if self.loop.is_void:
            return
        tensors = self._tensors()
        own: dict[str, Any] = {"model_rank": self._model_rank, "tensors": tensors}
        if self._optimizer is not None:
            own["optimizer"] = self._optimizer.state_dict()["state"]
        if any(tensor.is_cuda for tensor in tensors.values()):
            own["tensors"] = {name: tensor.detach().clone() for name, tensor in tensors.items()}
            self._copies = own
        else:
            self._encode_own(own)

    def hold_own(self) -> None:
        """Before a batch that counts nothing."""
        self.note_own()
        if self._copies:
            self._encode_own(self._copies)

    def undo(self) -> None:
        """After it: what only this rank has is as before, and so are generators, if each round sets them."""
        self.take_own_again()
        if self._reseed is not None:
            self._reseed(self.round)

    def _encode_own(self, own: dict[str, Any]) -> None:
        self._copies = {}
        self._own = plain.packed(own, "what only this rank has")

    def _keep(self, session: Session, leaves: str, left: list[Any] | None) -> None:
        """leaves: the job, if its round does; and left: where samplers are then."""
        first, top = self.loop.first_top, self.loop.last_top
        assert top is not None
        before = self.before() if leaves else []
        kept = {
            "round": self.round,
            "top": top.plain(leaves),
            "first": None if first is None or first.size > FIRST else first.plain(),
            "left": left,
            "own": self._own if leaves else NOTHING,
            "before": before if sum(4 * values.numel() for values in before) <= BEFORE and before else None,
            "model_rank": self._model_rank,
            "world_size": session.view().world_size,
            "frozen": "" if self._alike is None else self._alike.mark(),
            "earlier": NOTHING if leaves or self._left[0] != self.round else self._left[1],
        }
        self._kept = {of: known for of, known in self._kept.items() if of >= self.round - 1}
        self._kept[self.round] = plain.packed(kept, WHAT), top.whole
        if leaves:
            self._note_left(self.round, self._kept[self.round][0])
        self._give(session, self.round, *self._kept[self.round])

    def _note_left(self, round: int, kept: Packed) -> None:
        """Notes what was kept when a round left."""
        if self.starts_together:
            self._left = round, kept

    def _give(self, session: Session, round: int, kept: Packed, whole: bool) -> None:
        data = kept.state() if kept else b""
        try:
            session.keep(round, data, kept.pieces(), whole)
        except Error as error:
            if len(data) > LIMIT:
                raise
            logger.debug("round %d is not kept: %s", round, error)  # a view that is over; the next wait says why

    # ---- going on

    def found(self, session: Session, round: int) -> Kept | None:
        """Returns the state kept with a round; None if there is none.

        Raises:
            ValueError: the model is another than the job's.
        """
        self._given, self.unknown = None, ""
        self.loop.batches_before = 0
        self._kept = {of: kept for of, kept in self._kept.items() if of <= round}  # later ones are lost
        if not round:
            self._begin_alike(session)
            return None
        first_state = session.view().first_state
        known = self._kept.get(round)
        kept = self._read(session.kept_state) if known is None else known[0]
        mine = self._state(kept, round)
        state = mine
        if mine is not None and kept is not None:
            self._note_left(round, mine["earlier"] if mine["left"] is None else kept)
        if first_state == FirstState.COMES and (mine is None or not _is_whole(mine)):
            state = _completed(mine, self._state_of_first(session, round))
        elif first_state == FirstState.GIVEN:
            self._give_first(session, round, mine)
        if state is None:
            return None
        if self._alike is not None:
            self._alike.check(state["frozen"])
        if mine and state["first"] is not None and self.loop.first_top is None:
            self.loop.first_top = Top(**state["first"])
        return self._found(state, session.view().world_size, mine is not None)

    def _found(self, state: dict[str, Any], world_size: int, mine: bool) -> Kept:
        earlier = self._state(state["earlier"] or None, state["round"])
        return Kept(
            state["round"],
            Top(**state["top"]),
            state["left"],
            state["own"],
            state["before"] if state["model_rank"] == self._model_rank else None,
            mine=mine,
            dealt_alike=state["world_size"] == world_size,
            earlier=None if earlier is None else self._found(earlier, world_size, mine),
        )

    def _read(self, call: Callable[[], KeptBytes]) -> Packed | None:
        try:
            kept = call()
            return Packed.of(kept.state, kept.large) if kept.state else None
        except (ValueError, Unavailable) as error:
            self.unknown = str(error)
            return None

    def _state(self, kept: Packed | None, round: int) -> dict[str, Any] | None:
        try:
            state = None if kept is None else plain.unpacked(kept)
        except ValueError as error:
            state, self.unknown = None, str(error)
        return state if state is not None and state["round"] == round else None

    def _state_of_first(self, session: Session, round: int) -> dict[str, Any] | None:
        """Parameters and state of another part of the model are of no use here."""
        state = self._state(self._read(session.kept_state_of_first), round)
        if state is not None and state["model_rank"] != self._model_rank:
            for part in state["top"]["jobs"].values():
                part["alike"] = None if part["alike"] is None else NOTHING
        return state

    def _give_first(self, session: Session, round: int, mine: dict[str, Any] | None) -> None:
        """Gives the state to the ranks without one, which wait for it. Empty: there is none."""
        kept = NOTHING if mine is None else plain.packed(mine, WHAT)
        self._give(session, round, kept, mine is None or _is_whole(mine))

    def _begin_alike(self, session: Session) -> None:
        """As DDP's constructor does it: buffers and frozen parameters are those of one rank."""
        first_state = session.view().first_state
        if first_state == FirstState.GIVEN:
            if self._alike is not None and not self._beginning:
                self._beginning = plain.packed({"round": 0, **self._alike.beginning()}, "the model's buffers")
            self._give(session, 0, self._beginning, True)
        elif first_state == FirstState.COMES and self._alike is not None:
            given = self._state(self._read(session.kept_state_of_first), 0)
            if given is not None:
                self._alike.begin(given)

    def begins(self, round: int) -> None:
        """After a round of which nothing is known."""
        self.round = round
        self.note_own()

    def take(self, part: dict[str, Any]) -> None:
        """Takes the job's own state at a top, a result of part()."""
        self.round, self._given = part["round"], part["schedulers"]
        self._take_own(part["own"])
        if part["alike"] and self._alike is not None:
            self._alike.load(plain.unpacked(part["alike"]))
            self.stepped = part.get("stepped", self.round)

    def step_anew(self) -> None:
        """The job is at its beginning once more: an optimizer that steps here has no state."""
        if self._alike is not None and self._alike.steps_here:
            self._alike.forget()
            self.stepped = 0

    def come_to(self, kept: Kept) -> None:
        """A round that the loop has gone through once more."""
        self.round = kept.round
        self._take_own(kept.own)
        self.loop.comes_to(kept.left or [])

    def _take_own(self, own: Packed) -> None:
        self._own, self._copies = own, {}
        self.take_own_again()

    def take_own_again(self) -> None:
        """The loop has changed it, in what is left of an iteration that is of no round."""
        if self._own:
            self._load_own(plain.unpacked(self._own))

    def back_to_top(self, name: str) -> None:
        """The pass since the loop's last top is of no round."""
        top = self.loop.last_top
        if top is not None and name in top.jobs:
            self._take_own(top.jobs[name]["own"])

    def go_on_in_loop(self, top: Top, own: bool) -> None:
        """The program's loop continues from a top, after this job's round."""
        reseed, round = self._reseed, self.round
        self.loop.go_on(top, own, None if reseed is None else lambda: reseed(round))

    @torch.no_grad()
    def _load_own(self, own: dict[str, Any]) -> None:
        if own["model_rank"] != self._model_rank:
            return  # the job continues with other ranks
        tensors = self._tensors()
        for name, values in own.get("tensors", {}).items():
            there = tensors.get(name)
            if there is None or there.shape != values.shape:
                raise ValueError(
                    f"the job's state has a buffer '{name}' of shape {tuple(values.shape)}, which the model has not: "
                    "give the same model, or start another job with name="
                )
            there.data.copy_(values)  # a job goes back when another's backward pass is still to come
        if self._optimizer is not None and "optimizer" in own:
            optimizer_state.load_arrays(self._optimizer, own["optimizer"])


def _is_whole(state: dict[str, Any]) -> bool:
    return Top(**state["top"]).whole


def _completed(mine: dict[str, Any] | None, first: dict[str, Any] | None) -> dict[str, Any] | None:
    """A state with what all ranks have alike, which the first rank keeps."""
    if mine is None or first is None:
        return first
    for name, part in mine["top"]["jobs"].items():
        if part["alike"] is not None and not part["alike"] and name in first["top"]["jobs"]:
            given = first["top"]["jobs"][name]  # one of the two may have stepped what the other has still to step
            part["alike"], part["stepped"] = given["alike"], given["round"]
            if given["round"] < part["round"]:
                part["step_with"] = given["schedulers"]["values"]
    return mine
