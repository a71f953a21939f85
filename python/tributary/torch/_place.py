"""What a rank keeps with each round, beside the parameters, to go on after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import torch

from tributary._errors import Error
from tributary._library import Session
from tributary.torch import _plain, _state
from tributary.torch._log import logger
from tributary.torch._loop import Loop, Top
from tributary.torch._plain import LIMIT
from tributary.torch._schedulers import Schedulers

WHAT = "what belongs to the place in the data"
SPARE = 4096  # bytes: names and shapes of parameters


@dataclass(frozen=True)
class Kept:
    """What was kept of a round of a job.

    Attributes:
        top: that the program goes on from.
        left: where samplers were when the round left, if the loop did not come to its top after it.
        own: what only the rank had then.
        before: parameters that the round began with, if they were kept.
        mine: this rank kept it.
    """

    round: int
    top: Top
    left: list[Any] | None
    own: bytes
    before: list[torch.Tensor] | None
    mine: bool


class Place:
    """The state of one job's rank: of its program, of the schedulers of its optimizer, and of what only this rank has.

    A round's state is kept twice: before its first gradient is sent, because the round may be complete without this
    process, and again at the top of the loop, when the loop has done what belongs to the round (_loop.py). Both name
    the program's last top. A process that goes on from the first goes through the round once more without training, so
    that the loop does what belongs to it.

    Args:
        loop: of the program.
        schedulers: of the job's optimizer.
        tensors: says which this rank writes itself, by name: buffers.
        optimizer: whose state this rank has; None: servers have it.
        reseed: sets random generators for what follows a round, as the end of each step() does; None: it does not.

    Attributes:
        round: that left last, or that the loop was at the top after.
        unknown: why what was kept of the round that this rank goes on after cannot be read.
        before: tells the parameters that the open round began with.
    """

    def __init__(
        self,
        loop: Loop,
        schedulers: Schedulers,
        tensors: Callable[[], dict[str, torch.Tensor]] = dict,
        optimizer: torch.optim.Optimizer | None = None,
        reseed: Callable[[int], None] | None = None,
    ) -> None:
        self.loop = loop
        self.round = 0
        self.unknown = ""
        self.before: Callable[[], list[torch.Tensor]] = list
        self._reseed = reseed
        self._schedulers = schedulers
        self._tensors = tensors
        self._optimizer = optimizer
        self._kept: dict[int, bytes] = {}  # of the last rounds
        self._own = b""  # what only this rank has
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
        """The loop begins its next iteration: what goes on from a state has it now."""
        if self._given is not None:
            given, self._given = self._given, None
            self._schedulers.load(given)

    def part(self) -> dict[str, Any]:
        """What is this job's own at the loop's top."""
        self._schedulers.find()
        if self._copies:
            self._encode_own(self._copies)
        return {"round": self.round, "schedulers": self._schedulers.state(), "own": self._fitting}

    def keep_top(self, session: Session) -> None:
        """The loop is at its top after the round."""
        if self.round:
            self._keep(session, "", None)

    def keep_again(self, session: Session, round: int) -> None:
        """In a view that begins after a round: what was kept when the one before had ended is nowhere else."""
        self._kept = {of: data for of, data in self._kept.items() if of in (round, round + 1)}
        for of, data in sorted(self._kept.items()):
            session.keep(of, data)

    def note_own(self) -> None:
        """Notes what only this rank has, because the next forward pass writes it. A GPU's tensors are copied there, and
        read at the loop's top, because reading holds the GPU up. Until then those of the round before count.
        """
        if not self.loop.own_fits:
            return
        tensors = self._tensors()
        own: dict[str, Any] = {"tensors": tensors}
        if self._optimizer is not None:
            own["optimizer"] = self._optimizer.state_dict()["state"]
        arrays = [
            *tensors.values(),
            *(value for state in own.get("optimizer", {}).values() for value in state.values()),
        ]
        self._fit(sum(array.numel() * array.element_size() for array in arrays if isinstance(array, torch.Tensor)))
        if any(tensor.is_cuda for tensor in tensors.values()):
            own["tensors"] = {name: tensor.detach().clone() for name, tensor in tensors.items()}
            self._copies = own
        else:
            self._encode_own(own)

    def _encode_own(self, own: dict[str, Any]) -> None:
        self._copies = {}
        self._own = _plain.encoded(own, "what only this rank has") if self.loop.own_fits else b""

    @property
    def _fitting(self) -> bytes:
        """What of its own is kept."""
        return self._own if self.loop.own_fits else b""

    def _fit(self, size: int) -> None:
        if size <= LIMIT or not self.loop.own_fits:
            return
        self.loop.own_fits, self._copies, self._own = False, {}, b""
        logger.warning(
            "what this rank keeps beside the parameters has %d KiB, and %d are kept: buffers and the state of an "
            "optimizer that steps here begin anew in a process that goes on",
            size >> 10,
            LIMIT >> 10,
        )

    def _keep(self, session: Session, leaves: str, left: list[Any] | None) -> None:
        """leaves: the job, if its round does; and left: where samplers are then."""
        data = self._encoded(leaves, left)
        if len(data) > LIMIT and self.loop.own_fits:
            self._fit(len(data))
            assert self.loop.last_top is not None
            self.loop.last_top = self.loop.last_top.without_own()
            data = self._encoded(leaves, left)
        self._kept = {of: known for of, known in self._kept.items() if of >= self.round - 1}
        self._kept[self.round] = data
        try:
            session.keep(self.round, data)
        except Error as error:
            if len(data) > LIMIT:
                raise
            logger.debug("round %d is not kept: %s", self.round, error)  # a view that is over; the next wait says why

    def _encoded(self, leaves: str, left: list[Any] | None) -> bytes:
        first, top = self.loop.first_top, self.loop.last_top
        assert top is not None
        if first is not None and first.size + top.size + len(self._own) > LIMIT // 2:
            first = None
        whole = {
            "round": self.round,
            "top": top.plain(leaves),
            "first": None if first is None else first.plain(),
            "left": left,
            "own": self._fitting if leaves else b"",
            "before": None,
        }
        data = _plain.encoded(whole, WHAT)
        before = self.before() if leaves else []
        if before and len(data) + 4 * sum(values.numel() for values in before) < LIMIT - SPARE:
            data = _plain.encoded({**whole, "before": before}, WHAT)
        return data

    # ---- going on

    def found(self, session: Session, round: int) -> Kept | None:
        """What was kept of a round. None: nothing is known of it."""
        self._given, self.unknown = None, ""
        self.loop.batches_before = 0
        self._kept = {of: data for of, data in self._kept.items() if of <= round}  # later ones are lost
        if not round:
            return None
        mine = self._kept.get(round) or session.kept()
        data = mine or session.kept_of_first()
        try:
            state = _plain.decoded(data) if data else None
        except ValueError as error:
            state, self.unknown = None, str(error)
        if state is None or state["round"] != round:
            return None
        if mine and state["first"] is not None and self.loop.first_top is None:
            self.loop.first_top = Top(**state["first"])
        return Kept(round, Top(**state["top"]), state["left"], state["own"], state["before"], mine=bool(mine))

    def begins(self, round: int) -> None:
        """After a round of which nothing is known."""
        self.round = round
        self.note_own()

    def take(self, part: dict[str, Any]) -> None:
        """What was this job's own at a top."""
        self.round, self._given = part["round"], part["schedulers"]
        self._take_own(part["own"])

    def come_to(self, kept: Kept) -> None:
        """A round that the loop has gone through once more."""
        self.round = kept.round
        self._take_own(kept.own)
        self.loop.comes_to(kept.left or [])

    def _take_own(self, own: bytes) -> None:
        self._own, self._copies = own, {}
        self.take_own_again()

    def take_own_again(self) -> None:
        """The loop has changed it, in what is left of an iteration that is of no round."""
        if self._own:
            self._load_own(_plain.decoded(self._own))

    def go_on_in_loop(self, top: Top, own: bool) -> None:
        """The program's loop goes on from a top, after this job's round."""
        reseed, round = self._reseed, self.round
        self.loop.go_on(top, own, None if reseed is None else lambda: reseed(round))

    @torch.no_grad()
    def _load_own(self, own: dict[str, Any]) -> None:
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
            groups = self._optimizer.state_dict()["param_groups"]
            given = {"state": own["optimizer"], "param_groups": groups}
            _state.load(self._optimizer, self._optimizer.param_groups, given)
