"""A job's session with the node's worker, and the memory that is shared in it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from typing import Callable

import torch

from tributary import _library
from tributary._errors import Error, Status, Unavailable
from tributary._library import CONFIGURED, AttachOptions, Floats, Session, Step, Tensor, View
from tributary.torch._base.launch import NOT_LAUNCHED, attach_timeout_ms, topology_of_environment
from tributary.torch._model.copies import Copies
from tributary.torch._session.initial import InitialValues
from tributary.torch._steps.settings import Settings


class Attachment:
    """Ends with its view, and is made again: the job's next view has another session.

    Args:
        name: of the job, for messages.
        text: of the job, TOML or JSON.
        tensors: what the job trains.
        initial: gives a tensor's initial values, fp32 in logical order, to the memory that it is handed.
        rounds: of the whole job; 0: unknown.
        model_rank: which part of the model this rank holds.
        held: which of the tensors those are; None: all.
        copies: between the model and the session's memory.
        shares: the model's parameters are where the worker writes them.
        attach_timeout: for the worker and all ranks to be there, seconds; None: as the environment says, else 120.

    Attributes:
        began_after: the round that the view began after.
        pushed: gradients have left for the view's open round.
    """

    def __init__(
        self,
        name: str,
        text: str,
        tensors: Sequence[Tensor],
        *,
        initial: Callable[[int, torch.Tensor], None],
        computes_with: str = "",
        rounds: int = 0,
        model_rank: int = 0,
        held: Sequence[int] | None = None,
        copies: Copies | None = None,
        shares: bool = False,
        attach_timeout: float | None = None,
    ) -> None:
        self.name = name
        self.tensors = tensors
        self.rounds = rounds
        self.held = range(len(tensors)) if held is None else held
        self.copies = Copies() if copies is None else copies
        self.timeout_ms = attach_timeout_ms(attach_timeout)
        self.began_after = 0
        self.pushed = False
        self._said: dict[int, tuple[float, float]] = {}  # in this session, by group
        self._fill = initial
        self._initial: InitialValues | None = None
        self._library = _library.load()
        self._recovery = self._library.recovery()
        self._options = AttachOptions(
            job=text,
            tensors=tensors,
            topology=topology_of_environment(),
            gradients_move=True,
            device=self.copies.device,
            computes_with=computes_with,
            recovery=self._recovery,
            model_rank=model_rank,
            holds_parameters=shares,
        )
        self.live: Session | None = None
        self._view: View | None = None

    @property
    def attached(self) -> bool:
        """Whether it is, or was."""
        return self._view is not None

    @property
    def view(self) -> View:
        """The newest."""
        if self._view is None:
            raise Error(f"job '{self.name}' is not attached")
        return self._view

    @property
    def session(self) -> Session:
        if self.live is None:
            raise Error(f"job '{self.name}' has no session: it was finished or stopped")
        return self.live

    def retry(self, why: int, reason: str, round_done: bool) -> float:
        """Returns the pause before the next :meth:`make`, seconds.

        Raises:
            Unavailable: it was tried often enough.
        """
        return self._recovery.retry(why, reason, round_done)

    def make(self, timeout_ms: int, stops: ctypes.c_int, note: Callable[[str], None]) -> None:
        """Blocks until all ranks are there, and their parameters.

        Args:
            stops: not 0, set by another thread, ends the wait for ranks.
            note: called with what the attach waits for.
        """
        session = self._session_with(replace(self._options, attach_timeout_ms=timeout_ms, stops=stops, note=note))
        try:
            view = session.view()
            self.live, self._view = session, view
            if view.fresh:
                self._give_initial(session)
            session.start()
        except BaseException:
            self.drop()
            raise
        self.began_after, self.pushed = view.resume_round, False
        self._said = {}
        if self.rounds:
            session.last_round(self.rounds)

    def _session_with(self, options: AttachOptions) -> Session:
        try:
            return self._library.attach(options)
        except Error as error:
            if error.status == Status.TOPOLOGY and options.topology is not None:
                raise Error(f"{error}; {NOT_LAUNCHED}", error.status) from None
            if error.status != Status.NO_DEVICE or self.copies.device < 0:
                raise
            if options.note is not None:
                options.note(f"each copy between the GPU and the job is waited for: {error}")
            self.copies = Copies()
            self._options.device = self.copies.device
            return self._library.attach(replace(options, device=self.copies.device))

    def _give_initial(self, session: Session) -> None:
        places = {i: values for i in self.held if (values := session.initial(i)) is not None}
        memory = list(places.values())
        if not memory:
            return
        if self._initial is None:
            for i, values in places.items():
                self._fill(i, self.copies.tensor_of(values, self.tensors[i].shape, on_device=False))
            self._initial = InitialValues(memory)
        else:  # the job begins again, with its first values
            self._initial.read(memory)

    def why_over(self) -> str:
        """The reason why there is no view, or why it has ended; empty: it has not. No other thread waits in it; if
        rounds are open, the view is assumed not to have ended.
        """
        if self.live is None:
            return f"job '{self.name}' is not attached"
        if self.pushed:
            return ""
        try:
            over = self.live.wait() in (Step.RESTART, Step.VIEW_STOPPED)
            return (self.live.stop_reason() or "its view has ended") if over else ""
        except Unavailable as error:
            return str(error)

    def drop(self) -> None:
        session, self.live = self.live, None
        if session is not None:
            self.copies.finish()
            session.destroy()

    def close(self) -> None:
        """Nothing is attached any more."""
        self.drop()
        if self._initial is not None:
            self._initial.close()

    # ---- memory

    def push(self, index: int, source: torch.Tensor | None, factor: float, weight: int, rate: float) -> None:
        """The tensor's gradient of its next round, over ``weight`` samples: ``source`` times ``factor``, or zeros.

        ``source`` is not to be written until the answer is there.
        """
        memory = self._tensor(index, self.session.gradient(index))
        self.pushed = True
        self.copies.give(memory, source, factor)
        self.copies.ready(self.session, index, weight, rate)

    def say(self, group: int, settings: Settings) -> None:
        """Sets the group's next step, besides the rate. Not while a thread is in :meth:`push` of its tensors."""
        said = (settings.weight_decay, settings.momentum)
        if self._said.get(group, (CONFIGURED, CONFIGURED)) != said:
            self.session.group_settings(group, *said)
        self._said[group] = said

    def parameters(self, index: int) -> torch.Tensor:
        """The tensor's values, fp32, of the parameter's shape. Not to be written."""
        return self._tensor(index, self.session.parameters(index))

    def _tensor(self, index: int, floats: Floats) -> torch.Tensor:
        return self.copies.tensor_of(floats, self.tensors[index].shape, self.view.on_device)
