"""What a rank keeps with each round, beside the parameters, to go on after it."""

from __future__ import annotations

from typing import Any, Callable

import torch

from tributary._errors import Error
from tributary._library import Session
from tributary.torch import _plain, _state
from tributary.torch._log import logger
from tributary.torch._loop import Loop
from tributary.torch._plain import LIMIT
from tributary.torch._schedulers import Schedulers


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
        self._loop = loop
        self._reseed = reseed
        self._schedulers = schedulers
        self._tensors = tensors
        self._optimizer = optimizer
        self._round = 0
        self._state: dict[str, Any] | None = None  # of the last round, until the next one's first gradient
        self._first: dict[str, Any] | None = None  # of the job's beginning: without a snapshot it goes back there
        self._at_top = False  # since then
        self._own = b""  # what only this rank has
        self._copies: dict[str, Any] = {}  # the same of a GPU, when the round left
        self._given: dict[str, Any] | None = None  # of schedulers, until the loop is at its top
        self._in_gap = False  # so are they to be stepped
        self._all_fits = True
        self.unknown = ""  # why nothing is known of the round that this rank goes on after

    @property
    def is_dealt(self) -> bool:
        """Whether samplers deal out what rounds are trained with."""
        return any(sampler.trains for sampler in self._loop.samplers)

    # ---- keeping

    def round_leaves(self, session: Session, round: int) -> None:
        """The first gradient of a round is about to be sent: it may be complete from now on."""
        self._round = round
        self._schedulers.round_leaves()
        self._note_own()
        self._state = {"loop": self._loop.when_round_leaves(), "top": False}
        self._at_top = False
        self._keep(session, self._state)

    def at_top(self, session: Session, draws: bool) -> None:
        """The loop begins the next round. draws: its batch is not taken yet."""
        if self._first is not None and "schedulers" not in self._first:
            self._schedulers.round_leaves()
            loop = self._loop.at_top(self._first["loop"], draws)
            self._first["loop"] = _plain.decoded(_plain.encoded(loop, "the loop's state"))  # a copy
            self._first["schedulers"] = self._schedulers.state()
        if self._given is not None:
            given, self._given = self._given, None
            self._schedulers.load(given, self._in_gap)
            return
        state = self._state
        if not draws:
            self._state = None
        if state is None or (self._at_top and not (draws and self._loop.looks)):
            return
        self._at_top = True
        loop = self._loop.at_top(state["loop"], draws)
        if self._loop.same_epoch(state["loop"], loop):
            self._schedulers.next_round_begins()
        self._keep(session, {"loop": loop, "top": True})

    def at_end(self, session: Session, round: int) -> None:
        """The program ends after this round, without a top of the loop."""
        state, self._state = self._state, None
        if state is not None and self._round == round:
            self._keep(session, {"loop": self._loop.at_end(state["loop"]), "top": True})

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

    def _keep(self, session: Session, state: dict[str, Any]) -> None:
        if state["top"] and self._copies:
            self._encode_own(self._copies)
        schedulers = self._schedulers.state()
        while True:
            whole = {"round": self._round, **state, "schedulers": schedulers, "own": self._own}
            data = _plain.encoded(whole, "what belongs to the place in the data")
            if len(data) <= LIMIT or not self._own:
                break
            self._fit(len(data))
        try:
            session.keep(self._round, data)
        except Error as error:
            if len(data) > LIMIT:
                raise
            logger.debug("round %d is not kept: %s", self._round, error)  # a view that is over; the next wait says why

    # ---- going on

    def go_on(self, session: Session, round: int, batches: int) -> None:
        """After a round, with what was kept of it. Sets ``unknown`` if that is nothing.

        Args:
            batches: that a rank takes in a round, where nothing better is known.
        """
        self._state, self._given, self.unknown = None, None, ""
        self._loop.batches_before = 0
        if round == 0:
            if self._first is not None:
                self._take(self._first, 0, own=True)
            else:
                self._note_own()
                if self._copies:
                    self._encode_own(self._copies)
                self._first = {"loop": self._loop.now(), "own": self._own, "top": True}
            return
        kept, first = session.kept(), session.kept_of_first()
        try:
            state = _plain.decoded(kept or first) if kept or first else None
        except ValueError as error:
            state, self.unknown = None, str(error)
        if state is None or state["round"] != round:
            self.unknown = self.unknown or f"nothing is kept of round {round}"
            self._loop.batches_before = round * batches
            return
        self._take(state, round, own=bool(kept))

    def _take(self, state: dict[str, Any], round: int, own: bool) -> None:
        self._in_gap = not state["top"]
        self._given = state["schedulers"]
        reseed = self._reseed
        self._loop.go_on(state["loop"], own, None if reseed is None else lambda: reseed(round))
        if state["own"]:
            self._load_own(_plain.decoded(state["own"]))

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
            there.copy_(values)
        if self._optimizer is not None and "optimizer" in own:
            groups = self._optimizer.state_dict()["param_groups"]
            given = {"state": own["optimizer"], "param_groups": groups}
            _state.load(self._optimizer, self._optimizer.param_groups, given)
