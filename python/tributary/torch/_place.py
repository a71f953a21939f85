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

SPARE = 4096  # bytes: names and shapes of parameters


@dataclass(frozen=True)
class Kept:
    """A state of a program that was kept with a round of one of its jobs. own: by this rank."""

    state: dict[str, Any]
    own: bool

    def part_of(self, name: str, mine: bool) -> dict[str, Any] | None:
        """A job's; None: there was no such job. mine: the state was kept with it."""
        part: dict[str, Any] | None = self.state if mine else self.state["others"].get(name)
        return part


class Place:
    """The state of one job's rank: of its loop, of the schedulers of its optimizer, and of what only this rank has.

    A state is kept twice: before the round's first gradient is sent, because the round may be complete without this
    process, and again at the top of the loop, when the loop has done what belongs to the round (_loop.py). A process
    that goes on from the first does again what the loop did last in such a gap.

    Args:
        loop: of the program.
        schedulers: of the job's optimizer.
        tensors: says which this rank writes itself, by name: buffers.
        optimizer: whose state this rank has; None: servers have it.
        reseed: sets random generators for what follows a round, as the end of each step() does; None: it does not.
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
        self._reseed = reseed
        self._schedulers = schedulers
        self._tensors = tensors
        self._optimizer = optimizer
        self.others: Callable[[bool], dict[str, Any]] = lambda leaves: {}  # parts of the program's other jobs
        self.before: Callable[[], list[torch.Tensor]] = list  # parameters that the open round began with
        self._round = 0
        self._kept: dict[int, bytes] = {}  # of the last rounds
        self._first: dict[str, Any] | None = None  # of the job's beginning: without a snapshot it goes back there
        self._in_round = False  # a round has left, and the loop has not come to its top
        self._own = b""  # what only this rank has
        self._copies: dict[str, Any] = {}  # the same of a GPU, when the round left
        self._given: dict[str, Any] | None = None  # of schedulers, until the loop is at its top
        self._in_gap = False  # so are they to be stepped
        self._all_fits = True
        self.unknown = ""  # why nothing is known of the round that this rank goes on after

    # ---- keeping

    def round_leaves(self, session: Session | None, round: int) -> None:
        """The first gradient of a round is about to be sent: it may be complete from now on. Without a session it is
        complete, and nothing is sent.
        """
        self._round = round
        self._in_round = True
        self._schedulers.round_leaves()
        self.loop.round_leaves()
        if session is not None:
            self._note_own()
            self._keep(session, self.loop.now_left, top=False)

    def at_top(self, session: Session | None, draws: bool, top: Top | None) -> None:
        """The loop begins the next round.

        Args:
            session: None: the job is ahead, and what is kept of its round is of later.
            draws: its batch is not taken yet.
            top: what is to be kept of the loop; None: nothing new.
        """
        if self._first is not None and "schedulers" not in self._first:
            self._schedulers.round_leaves()
            self._first["loop"] = self.loop.at_top(self._first["loop"], draws)
            self._first["schedulers"] = self._schedulers.state()
        if self._given is not None:
            given, self._given = self._given, None
            self._schedulers.load(given, self._in_gap)
        if top is None or session is None:
            return
        if self._in_round and top.same_epoch:
            self._schedulers.next_round_begins()
        self._in_round = False
        self._keep(session, top.loop, top=True)

    def at_end(self, session: Session, round: int) -> None:
        """The program ends after this round, without a top of the loop."""
        loop = self.loop.ends()
        if loop is not None and self._round == round:
            self._keep(session, loop, top=True)

    def keep_again(self, session: Session, round: int) -> None:
        """In a view that begins after a round: what was kept when the one before had ended is nowhere else."""
        self._kept = {of: data for of, data in self._kept.items() if of in (round, round + 1)}
        for of, data in sorted(self._kept.items()):
            session.keep(of, data)

    def part(self, leaves: bool) -> dict[str, Any]:
        """What is this job's own, for what another one keeps. leaves: a round of that one leaves."""
        if not self._in_round and not self._round:
            self._schedulers.round_leaves()
        if leaves:
            self._note_own()
        return {"round": self._round, "schedulers": self._schedulers.state(), "own": self._own}

    def _note_own(self) -> None:
        """Notes what only this rank has, because the next forward pass writes it. A GPU's tensors are copied there, and
        read at the loop's top, because reading holds the GPU up. Until then those of the round before count.
        """
        if not self._all_fits:
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
        self._own = _plain.encoded(own, "what only this rank has") if self._all_fits else b""

    def _fit(self, size: int) -> None:
        if size <= LIMIT or not self._all_fits:
            return
        self._all_fits, self._copies, self._own = False, {}, b""
        logger.warning(
            "what this rank keeps beside the parameters has %d KiB, and %d are kept: buffers and the state of an "
            "optimizer that steps here begin anew in a process that goes on",
            size >> 10,
            LIMIT >> 10,
        )

    def _keep(self, session: Session, loop: dict[str, Any], top: bool) -> None:
        if top and self._copies:
            self._encode_own(self._copies)
        others = self.others(not top)
        whole = {
            "round": self._round,
            "loop": loop,
            "top": top,
            "tops": self.loop.tops,
            "leaves": self.loop.leaves,
            "schedulers": self._schedulers.state(),
            "others": others,
            "before": None,
        }
        while True:
            data = _plain.encoded({**whole, "own": self._own}, "what belongs to the place in the data")
            if len(data) <= LIMIT or not self._own:
                break
            self._fit(len(data))
        before = self.before() if others and not top else []
        if before and len(data) + 4 * sum(values.numel() for values in before) < LIMIT - SPARE:
            data = _plain.encoded(
                {**whole, "own": self._own, "before": before}, "what belongs to the place in the data"
            )
        self._kept = {of: known for of, known in self._kept.items() if of >= self._round - 1}
        self._kept[self._round] = data
        try:
            session.keep(self._round, data)
        except Error as error:
            if len(data) > LIMIT:
                raise
            logger.debug("round %d is not kept: %s", self._round, error)  # a view that is over; the next wait says why

    # ---- going on

    def found(self, session: Session, round: int) -> Kept | None:
        """What was kept of a round. None: nothing is known of it, and ``unknown`` says why if it is not the first."""
        self._given, self.unknown = None, ""
        self.loop.batches_before = 0
        kept, first = session.kept(), session.kept_of_first()
        try:
            state = _plain.decoded(kept or first) if kept or first else None
        except ValueError as error:
            state, self.unknown = None, str(error)
        if state is not None and state["round"] == round:
            return Kept(state, own=bool(kept))
        if round:
            self.unknown = self.unknown or f"nothing is kept of round {round}"
        return None

    def begin(self) -> None:
        """At the job's beginning, where it may come again."""
        self._round = 0
        if self._first is not None and "schedulers" in self._first:
            self.take(self._first, in_gap=False)
            self.go_on_in_loop(Kept(self._first, own=True))
            return
        self._note_own()
        if self._copies:
            self._encode_own(self._copies)
        self._first = {"round": 0, "loop": self.loop.now(), "own": self._own, "top": True, "tops": 0, "leaves": 0}

    def take(self, part: dict[str, Any], in_gap: bool) -> None:
        """What is this job's own, of what was kept. in_gap: so are its schedulers to be stepped."""
        self._round, self._in_gap = part["round"], in_gap
        self._given = part["schedulers"]
        self.take_own(part)

    def take_own(self, part: dict[str, Any]) -> None:
        self._own = part["own"]
        self.take_own_again()

    def take_own_again(self) -> None:
        """The loop has changed it, in what is left of an iteration that is of no round."""
        if self._own:
            self._load_own(_plain.decoded(self._own))

    def go_on_in_loop(self, kept: Kept) -> None:
        """The program's loop goes on from this job's state."""
        reseed, round = self._reseed, kept.state["round"]
        self.loop.go_on(kept.state, kept.own, None if reseed is None else lambda: reseed(round))

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
