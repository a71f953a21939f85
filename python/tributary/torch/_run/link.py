"""A job as this process takes part in it: its rounds, whatever is lost meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import torch

from tributary._errors import Error, JobStopped, Unavailable
from tributary._library import Gate, Step, View
from tributary.torch._base import complaints
from tributary.torch._base.exceptions import Rewound
from tributary.torch._base.log import logger
from tributary.torch._model.parallel import Part
from tributary.torch._model.slots import Slot
from tributary.torch._run.leaving import Leaving
from tributary.torch._run.place import Kept, Place
from tributary.torch._run.together import Together
from tributary.torch._session.attachment import Attachment
from tributary.torch._session.report import Report
from tributary.torch._steps.settings import Settings, Values


@dataclass(frozen=True)
class Model:
    """The model that a job trains in this process.

    Args:
        slots: its parameters.
        arrived: called with each tensor whose values have come in a round.
        push_again: pushes the open round's gradients again, into a new view.
        clear: the job went back, and not in a step() of its own: the open round begins again.
        step_here: its parameters are this rank's own, once it has begun, and this steps them with the mean gradient of
            the newest round. Takes the groups' values; None: those that they have. None: servers step.
    """

    slots: list[Slot]
    arrived: Callable[[int], None]
    push_again: Callable[[], None]
    clear: Callable[[], None] = lambda: None
    step_here: Callable[[list[Values] | None], None] | None = None

    @property
    def steps_here(self) -> bool:
        return self.step_here is not None


class Link:
    """Keeps a job going.

    Args:
        attachment: the attachment to the node's worker.
        model: the model that the job trains.
        jobs: the program's jobs.
        place: the state that this rank keeps besides the parameters.
        part: the part of the model that this rank holds.
        accumulate: backward passes a round, whose batches are those of so many ranks.
        batches: batches of each rank in a round.
        on_rewind: "raise" or "warn", where the loop is when the job went back.

    Attributes:
        round: the newest round whose parameters are here.
        trained: a round has left since this process reached the place where it continued.
        skips: the job went back, and the rest of the loop's iteration is of no round.
        beside: rounds that other jobs of the program had when this one began in the middle of the loop, by name.
        ahead: the state kept with a later round, which is complete: the loop goes through it once more, and nothing is
            sent until then.
    """

    def __init__(
        self,
        attachment: Attachment,
        model: Model,
        jobs: Together,
        place: Place,
        *,
        part: Part = Part(),  # noqa: B008, it has no state
        accumulate: int = 1,
        batches: int = 1,
        on_rewind: str = "warn",
    ) -> None:
        self.name = attachment.name
        self.attachment = attachment
        self.place = place
        self.part = part
        self.report = Report(attachment, part)
        self.accumulate = accumulate
        self.round = 0
        self.trained = False
        self.skips = False
        self.ahead: Kept | None = None
        self.beside: dict[str, int] = {}
        self.rewinds = 0  # how often the job went back
        self.rewound_from = 0  # round that the job had when it last did
        self.leaving = Leaving(self, jobs)
        self.began_at = 0  # round that was complete when this process continued
        self._model = model
        self._jobs = jobs
        self._batches = batches
        self._on_rewind = on_rewind
        self._opened = False
        self._ranks = (0, 0)  # this one and how many, when the open round's samples were dealt
        self._order: list[int] = []  # tensors of the open round, as they were pushed
        if not model.steps_here:
            place.before = self._parameters_before
        place.whole = self._keeps_whole
        place.starts_together = part.starts_together

    # ---- this rank

    @property
    def attached(self) -> bool:
        """Whether it is, or was."""
        return self.attachment.attached

    @property
    def closed(self) -> bool:
        """Whether it was left."""
        return self.leaving.closed

    @property
    def view(self) -> View:
        """The newest."""
        return self.attachment.view

    @property
    def has_pushed(self) -> bool:
        """Whether gradients of the open round have left."""
        return bool(self._order)

    @property
    def waits(self) -> bool:
        """Whether a thread waits for a round. Any thread."""
        return self.report.watch.awaited is not None

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """Parameters that are trained here."""
        return [slot.parameter for slot in self._model.slots]

    def take_all(self) -> None:
        """Writes the job's values into the model, of a round that is complete."""
        with self.attachment.copies.taking():
            for slot in self._model.slots:
                self.take(slot)

    def take(self, slot: Slot) -> None:
        """Writes a tensor's values into its parameter, when they arrive (:meth:`complete_round`)."""
        self.attachment.copies.take(slot, self.attachment.parameters(slot.index))

    def gate(self, round: int) -> Gate | None:
        """Returns the gate's decision about a round; None in a job without a gate."""
        if self.attachment.live is None:
            return None
        return self.attachment.live.gate(round if self.ahead is None else self.ahead.round)

    def _parameters_before(self) -> list[torch.Tensor]:
        return [self.attachment.parameters(slot.index) for slot in self._model.slots]

    def _keeps_whole(self) -> bool:
        """A snapshot is to be of the newest round, or the job ends with it: one rank keeps all for it."""
        live = self.attachment.live
        if live is None or self.view.rank != 0:
            return False
        return self.leaving.is_near or live.wanted_round() == self.round

    # ---- attaching

    def open(self) -> None:
        """The first attach, which must work within its time-out. The model has the job's parameters then."""
        self.part.watch(self._jobs.peer_has_ended)
        armed = self._jobs.stop.arm()
        self._jobs.stop.listen(self.leaving.answer)
        try:
            self._jobs.add(self)
        except BaseException as error:
            self.leaving.close()
            if armed:
                self._jobs.stop.disarm()
            if not isinstance(error, JobStopped):
                raise
            raise self.leaving.was_stopped(str(error)) from None
        if self.view.rank != 0:
            return
        if self.attachment.copies.device >= 0:
            on_device = self.view.on_device
            path = "stay on the GPU" if on_device else "go through memory of the host, where the worker sums"
            self.report.say(f"gradients {path}")
        self.report.say(
            f"job '{self.name}' goes on after round {self.began_at}"
            if self.began_at
            else f"job '{self.name}' starts at round 0: no state of it is saved"
        )

    @property
    def _complete(self) -> int:
        """The newest round that is complete, as far as this rank knows."""
        return self.round if self.ahead is None else self.ahead.round

    @property
    def is_where_it_was(self) -> bool:
        """Whether the new view begins after this rank's newest round, or with the one that was open."""
        began = self.attachment.began_after
        if began == self._complete:
            return not (self._order and self._is_dealt_anew)
        return bool(self._order) and began == self._complete + 1

    @property
    def _is_dealt_anew(self) -> bool:
        """Whether the open round has other batches now: those of before were dealt out to other ranks."""
        return self._ranks != (self.view.rank, self.view.world_size) and self.place.is_dealt

    def push_again(self) -> None:
        """Pushes the open round's gradients again, into a new view that begins before it."""
        self.leaving.begins_anew()
        self._ranks = (self.view.rank, self.view.world_size)
        self.place.keep_again(self.attachment.session, self.attachment.began_after)
        if self._order and self.attachment.began_after == self._complete:
            self._order = []
            self._model.push_again()

    def goes_back(self, skips: bool) -> None:
        """Goes back: the new view begins after an earlier round, or the open round begins again. skips: the loop is to
        come to its top before a round.
        """
        self.rewound_from = self.round
        self.rewinds += 1
        self.leaving.begins_anew()
        self.skips = skips
        self._order = []

    def tell_rewound(self) -> None:
        """Reports to the loop, or in a line of the log, that the job went back; if training continues.

        Raises:
            Rewound: as it was asked for.
        """
        if self.closed:
            return
        self.raise_rewound()
        logger.warning("rank %d: %s; training goes on from there", self.view.rank, self._rewound)

    def raise_rewound(self) -> None:
        """If it was asked for."""
        if self._on_rewind == "raise":
            raise self._rewound

    @property
    def _rewound(self) -> Rewound:
        return Rewound(self.attachment.began_after, from_round=self.rewound_from)

    def clear(self) -> None:
        """The same in the model, which was not in a step of this job."""
        self._model.clear()

    def goes_on(self, part: dict[str, Any] | None, ahead: Kept | None = None) -> None:
        """In the view that there is now.

        Args:
            part: the job's own state at the top from which the program continues. None: none is known.
            ahead: the state kept with a later round, which is complete.
        """
        self.began_at = self.attachment.began_after
        self._ranks = (self.view.rank, self.view.world_size)
        self.round = self.began_at if part is None else part["round"]
        self.ahead, self.trained = ahead, False
        if self._model.steps_here and self.began_at and not self._can_step(part, ahead):
            message = complaints.mean_cannot_resume(self.name, self.began_at)
            self.leaving.fail(message)
            raise Error(message)
        if not self._model.steps_here or self.began_at == 0:
            self.take_all()
        if self.began_at == 0 and self._opened:
            self.place.step_anew()
        self._opened = True
        if part is None:
            self._begins_anew()
        else:
            self.place.take(part)
            if self._model.step_here is not None and self.place.stepped < self.round:
                self._model.step_here(part.get("step_with"))
        if ahead is not None and ahead.before is not None:
            for slot, values in zip(self._model.slots, ahead.before):
                slot.put(values)
            self._model.clear()

    @staticmethod
    def _can_step(part: dict[str, Any] | None, ahead: Kept | None) -> bool:
        """Whether an optimizer that steps here has the state to continue from: of the round before, at most."""
        if part is None or not part["alike"]:
            return False
        # The mean gradient of one round is there: of the newest that is complete.
        complete = part["round"] if ahead is None else ahead.round
        return complete - 1 <= part.get("stepped", part["round"]) <= complete

    def _begins_anew(self) -> None:
        self.place.begins(self.round)
        if self.round:
            self.place.loop.batches_before = self.round * self._batches
            logger.warning(
                "rank %d: %s for this rank. Schedulers, random generators and what was given to keep() begin anew, and "
                "a DistributedSampler goes on as if all rounds had taken as many batches",
                self.view.rank,
                self.place.unknown or f"nothing is kept of round {self.round}",
            )

    # ---- rounds

    @property
    def sends(self) -> bool:
        """Whether gradients of the open round are the job's."""
        return not self.skips and self.ahead is None

    def round_leaves(self) -> None:
        """The open round's first gradient is about to be pushed: what belongs to the round is kept."""
        self.trained = True
        if self.skips:
            return
        later = not self._model.steps_here or self.place.stepped > self.round
        if self.ahead is not None and not self.ahead.is_computed_alike and later:
            logger.warning(
                "rank %d: job '%s' went through round %d once more, which is complete. This rank has not the "
                "parameters and batches that it was trained with: what the loop computed of it (its loss) is of "
                "others. What is trained is not",
                self.view.rank,
                self.name,
                self.round + 1,
            )
        self.place.round_leaves(self.attachment.session if self.sends else None, self.name, self.round + 1)
        for one in self._jobs.open:
            if one is not self:
                one.place.note_own()  # this job's passes went through its model, maybe

    def push(self, index: int, source: torch.Tensor | None, factor: float, weight: int, rate: float) -> None:
        """As :meth:`Attachment.push`, if the round is the job's."""
        if self.sends:
            self.attachment.push(index, source, factor, weight, rate)
            self._order.append(index)

    def say(self, group: int, settings: Settings) -> None:
        """As :meth:`Attachment.say`, if the round is the job's."""
        if self.sends:
            self.attachment.say(group, settings)

    def gather(self, round: int, number: int, data: bytes) -> list[bytes] | None:
        """All ranks' values of a call of the loop. None: the job went back."""
        while True:
            try:
                with self.report.watch.waiting_for("values of the other ranks"):
                    found = self.attachment.session.gather(round, number, data)
                if not isinstance(found, Step):
                    return found
                step, reason = found, self.attachment.session.stop_reason()
            except Unavailable as error:
                step, reason = Step.RESTART, str(error)
            if not self._goes_on(step, reason, in_step=False):
                self.tell_rewound()
                return None

    def wait_pushed(self) -> None:
        """Blocks until the copies of what was pushed are done."""
        self.attachment.copies.wait_given()

    def skip(self) -> None:
        """A step of no round: what the loop has changed since the jobs went back is again as it was."""
        for one in self._jobs.open:
            one.place.take_own_again()
        self.place.loop.go_on_again()

    def at_top(self, draws: bool) -> None:
        """The loop begins its next iteration."""
        if self.skips and draws:
            self.place.take_own_again()
        self.skips = False
        self.place.at_top()

    def keep_top(self) -> None:
        """Keeps the state from which the program continues after the newest round."""
        if self.attachment.live is not None and self.ahead is None:
            self.place.keep_top(self.attachment.live)

    def complete_round(self) -> bool:
        """Waits for the round that was pushed, whatever is lost meanwhile.

        Returns:
            False if the job went back, or the open round begins again: the model has the parameters to continue with.

        Raises:
            Stopped: cleanly. The model has the parameters.
        """
        if self.skips:
            return False
        if self.ahead is not None:
            self.round += 1
            if self.round == self.ahead.round:  # else the loop makes several in an iteration
                self._come_to(self.ahead)
            return True
        with self.attachment.copies.taking():
            return self._complete_round()

    def catch_up(self) -> None:
        """The loop has made an iteration. If it had no round of this job this time, the job is where it is."""
        if self.ahead is not None and self.place.round == self.round:
            self._come_to(self.ahead)
            self._model.clear()

    def _come_to(self, kept: Kept) -> None:
        self.round, self.ahead = kept.round, None
        self.place.come_to(kept)
        if not self._model.steps_here:
            self.take_all()

    def _complete_round(self) -> bool:
        wanted = self.round + 1
        complete = False
        while True:
            step, reason = Step.CONTINUE, ""
            try:
                if not complete:
                    with self.report.watch.waiting(wanted):
                        step = self._wait()
                if step in (Step.CONTINUE, Step.STOP_REQUESTED):
                    complete = True
                    stops = self.part.agree(wanted, self._is_to_stop(step), self._view_is_cut)
                    if stops is not None:
                        self.round, self.leaving.stops, self._order = wanted, stops, []
                        self.attachment.pushed = False
                        self._jobs.round_done()
                        return True
                    step = Step.RESTART
                reason = self.attachment.session.stop_reason()
            except Unavailable as error:
                step, reason = Step.RESTART, str(error)
            if not self._goes_on(step, reason):
                return False
            complete = self.attachment.began_after == wanted
            if complete:
                for index in self.attachment.held:
                    self._model.arrived(index)
                self.report.say(f"round {wanted} is complete")

    def _goes_on(self, step: Step, reason: str, in_step: bool = True) -> bool:
        """After the end of the view, which a call of the session found.

        Returns:
            Whether this rank is where it was, in a new view. Else the job went back, or training has ended.

        Raises:
            Stopped: the job stops.
        """
        if step == Step.VIEW_STOPPED:
            self.leaving.as_stopped(reason)
        if step == Step.TRAINED:
            self._order = []
            self.leaving.as_trained(reason)
            return False
        return self._jobs.attach_again(self, reason, in_step)

    def _is_to_stop(self, step: Step) -> bool:
        return step == Step.STOP_REQUESTED or self._jobs.stop.requested is not None

    def _view_is_cut(self) -> bool:
        """Whether it ended when this rank had all of the round. Others may not have it, and attach again."""
        return self.attachment.session.wait() == Step.RESTART

    def _wait(self) -> Step:
        session = self.attachment.session
        asked = False
        for index in self._order:
            step = session.wait(index)
            if step == Step.STOP_REQUESTED:
                asked = True
            elif step != Step.CONTINUE:
                return step
            self._model.arrived(index)
        # Only when all of the round is there a stop is said.
        step = session.wait()
        return Step.STOP_REQUESTED if asked and step == Step.CONTINUE else step
