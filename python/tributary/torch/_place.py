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

    A round's state is kept twice: before its first gradient is sent, because the round may be complete without this
    process, and again at the top of the loop, when the loop has done what belongs to the round (_loop.py). The first
    has the top before it. A process that goes on from there is *ahead*: it goes through the round once more without
    training, so that the loop does what belongs to it.

    Args:
        loop: of the program.
        schedulers: of the job's optimizer.
        tensors: says which this rank writes itself, by name: buffers.
        optimizer: whose state this rank has; None: servers have it.
        reseed: sets random generators for what follows a round, as the end of each step() does; None: it does not.

    Attributes:
        unknown: why nothing is known of the round that this rank goes on after.
        ahead: the loop goes through a round that is complete.
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
        self._top = b""  # the loop and its schedulers, when the loop was there last
        self._left: dict[str, Any] | None = None  # the loop when the last round left, until the next one does
        self._at_top = False  # since then
        self._first: dict[str, Any] | None = None  # of the job's beginning: without a snapshot it goes back there
        self._own = b""  # what only this rank has
        self._copies: dict[str, Any] = {}  # the same of a GPU, when the round left
        self._given: dict[str, Any] | None = None  # of schedulers, until the loop is at its top
        self._after: list[Any] | None = None  # where samplers were when the round left that it goes through again
        self._all_fits = True
        self.unknown = ""

    @property
    def ahead(self) -> bool:
        return self._after is not None

    @property
    def is_dealt(self) -> bool:
        """Whether samplers deal out what rounds are trained with."""
        return any(sampler.trains for sampler in self._loop.samplers)

    # ---- keeping

    def round_leaves(self, session: Session, round: int) -> None:
        """The first gradient of a round is about to be sent: it may be complete from now on."""
        self._round = round
        self._schedulers.find()
        self._left = self._loop.when_round_leaves()
        self._at_top = False
        if not self.ahead:
            self._note_own()
            self._keep(session, self._left["samplers"])

    def at_top(self, session: Session, draws: bool) -> None:
        """The loop begins the next round. draws: its batch is not taken yet."""
        if self._given is not None:
            given, self._given = self._given, None
            self._schedulers.load(given)
            return
        left = self._left
        if not draws:
            self._left = None
        if left is None or (self._at_top and not (draws and self._loop.looks)):
            return
        self._at_top = True
        self._schedulers.find()
        self._comes_to_top(session, self._loop.at_top(left, draws))

    def at_end(self, session: Session, round: int) -> None:
        """The program ends after this round, without a top of the loop."""
        left, self._left = self._left, None
        if left is not None and self._round == round:
            self._comes_to_top(session, self._loop.at_end(left))

    def _comes_to_top(self, session: Session, loop: dict[str, Any]) -> None:
        state = {"loop": loop, "schedulers": self._schedulers.state()}
        self._top = _plain.encoded(state, "what belongs to the place in the data")
        if self._copies:
            self._encode_own(self._copies)
        if self._round:
            self._keep(session, None)
        else:
            self._first = {"top": self._top, "left": None, "own": self._own}

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

    def _keep(self, session: Session, left: list[Any] | None) -> None:
        """left: places of samplers, when the round leaves."""
        first = self._first  # a job that loses all goes back there, also in another process
        if first is not None and len(first["top"]) + len(first["own"]) + len(self._top) + len(self._own) > LIMIT // 2:
            first = None
        while True:
            whole = {"round": self._round, "top": self._top, "left": left, "own": self._own, "first": first}
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
        """After a round, with what was kept of it. Sets ``unknown`` if that is nothing, and ``ahead``.

        Args:
            batches: that a rank takes in a round, where nothing better is known.
        """
        self._round, self._given, self._after, self.unknown = round, None, None, ""
        self._left, self._at_top = None, False
        self._loop.batches_before = 0
        kept, first = session.kept(), session.kept_of_first()
        try:
            state = self._first if round == 0 else _plain.decoded(kept or first) if kept or first else None
        except ValueError as error:
            state, self.unknown = None, str(error)
        if state is not None and (round == 0 or state["round"] == round):
            self._take(state, own=round == 0 or bool(kept))
            return
        self._left = self._loop.now()
        if round:
            self.unknown = self.unknown or f"nothing is kept of round {round}"
            self._loop.batches_before = round * batches
        else:
            self._note_own()

    def _take(self, state: dict[str, Any], own: bool) -> None:
        self._top, self._own, self._after = state["top"], state["own"], state["left"]
        self._first = self._first or (state["first"] if own else None)
        top = _plain.decoded(self._top)
        self._given = top["schedulers"]
        reseed, round = self._reseed, self._round - self.ahead
        self._loop.go_on(top["loop"], own, None if reseed is None else lambda: reseed(round))
        if not self.ahead:
            self._load_own()

    def comes_to_round(self) -> None:
        """The loop has gone through the round that was complete."""
        assert self._after is not None
        self._loop.comes_to(self._after)
        self._after = None
        self._load_own()

    @torch.no_grad()
    def _load_own(self) -> None:
        if not self._own:
            return
        own, tensors = _plain.decoded(self._own), self._tensors()
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
