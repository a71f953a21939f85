"""How a job is left: finished, stopped cleanly, or failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, NoReturn

from tributary._errors import Error, Unavailable
from tributary._library import Leave
from tributary.torch._base.exceptions import Stopped
from tributary.torch._base.log import logger

if TYPE_CHECKING:
    from tributary.torch._run.link import Link
    from tributary.torch._run.together import Together


class Leaving:
    """Leaves one job.

    Args:
        link: the link that keeps the job going.
        jobs: the program's jobs.

    Attributes:
        closed: nothing is attached any more.
        stopped: how the job was left, if it was stopped.
        stops: the job stops after the newest round, as all ranks of this replica agreed.
        for_all: why this rank ends the others' training with its own; empty: it does not.
        before_stopped: called before this rank waits for the end of a job that stops.
    """

    def __init__(self, link: Link, jobs: Together) -> None:
        self.closed = False
        self.stopped: Stopped | None = None
        self.stops = False
        self.for_all = ""
        self.before_stopped: Callable[[], None] = lambda: None
        self._link = link
        self._jobs = jobs
        self._ends = False  # the program has come to its end, or to that of this job
        self._said = False  # it was told to finish, or that the job stops
        self._not_told = ""  # why it was not

    def begins_anew(self) -> None:
        """In a view of its own, this rank has said nothing."""
        self._said = False

    @property
    def is_near(self) -> bool:
        """Whether the newest round is the last of this process, as far as is known."""
        return self._ends or self.stops or self._jobs.stop.requested is not None

    def answer(self, signal_name: str) -> None:
        """To the first signal, in a thread that sees it at once. An attach ends by itself, and says why."""
        link = self._link
        if self.closed or link.attachment.live is None:
            return
        round = link.report.watch.awaited
        if self._said:
            when = "the job's state is saved"
        elif round is not None:
            when = f"the parameters of round {round} are there (`tributary status` says why they are not)"
        else:
            when = f"round {link.round + 1} is complete"
        link.report.say(f"{signal_name}: stops when {when}; a second Ctrl-C ends this rank at once")

    # ---- a job that stops

    def if_stopped(self) -> None:
        """Leaves the job if a rank of this replica was asked to stop when the newest round was complete."""
        if self.stops and not self.closed:
            self.as_stopped()

    def say_stopped(self) -> None:
        """Leaves the job as one that stops, without waiting for what comes of it."""
        link = self._link
        if self.closed or self._said:
            return
        self._said = True
        if link.view.rank == 0 and link.attachment.live is not None:
            link.place.keep_whole(link.attachment.live)
        try:
            link.attachment.session.finish(Leave.STOPPED, self._told)
        except Error as error:
            self._not_told = str(error)

    def as_stopped(self, reason: str = "") -> NoReturn:
        """Leaves a job that stops after this round. Always raises :class:`Stopped`."""
        self.before_stopped()
        self.say_stopped()
        session, not_saved = self._link.attachment.session, self._not_told
        if not not_saved:
            try:
                session.saved()
            except Error as error:
                not_saved = str(error)
        why = reason or session.stop_reason() or self._told or "the job was asked to stop"
        stopped = self.was_stopped(why, not_saved)
        self._link.part.leave()
        raise stopped

    @property
    def _told(self) -> str:
        name = self._jobs.stop.requested
        return f"rank {self._link.view.rank} was told to stop ({name})" if name else ""

    def was_stopped(self, why: str, not_saved: str = "") -> Stopped:
        """Closes the job as one that has stopped; what is to be raised."""
        link = self._link
        link.report.say(f"stopped after round {link.round}: {why}" if link.attachment.attached else f"stopped: {why}")
        if not_saved:
            link.report.say(f"not saved: {not_saved}")
        self.close()
        self.stopped = Stopped(why, link.round)
        return self.stopped

    # ---- a job that is finished

    def ends(self) -> None:
        """The program has come to its end, or to that of this job."""
        link = self._link
        if self._ends or self.closed:
            return
        self._ends = True
        if link.round and link.round == link.began_at and not link.rewinds and link.view.rank == 0:
            logger.warning(
                "job '%s' was at round %d when this program began, and no round was trained: to train on, give the "
                "program more epochs; to begin anew, another name= or `tributary run --fresh`",
                link.name,
                link.round,
            )
        if link.has_pushed:
            logger.warning(
                "job '%s': gradients of round %d have left, and no step() followed: what is saved may have that round "
                "in it, or not. Call backward() after the last step() only if the job is finish()ed before",
                link.name,
                link.round + 1,
            )
        if link.attachment.live is not None:
            self._jobs.at_end(link)

    def say_finished(self) -> None:
        """Reports that training is complete, without waiting for the result.

        Raises:
            tributary.Error: the report could not be sent.
        """
        if self.closed or self._said or self.stops:
            return
        self._said = True
        try:
            self._link.attachment.session.finish(*self._how_finished)
        except Error:
            self._said = False
            raise

    @property
    def _how_finished(self) -> tuple[Leave, str]:
        if not self.for_all:
            return Leave.FINISHED, ""
        return Leave.FINISHES_ALL, f"rank {self._link.view.rank} ended training: {self.for_all}"

    def as_trained(self, reason: str) -> None:
        """Another rank has finished for all: what was computed since the newest round is of none.

        Raises:
            tributary.NotSaved, Stopped: as :meth:`finish`.
        """
        self._link.place.loop.ended = reason
        self._link.report.say(f"training has ended with round {self._link.round}: {reason}")
        for one in self._jobs.open:
            one.place.back_to_top(one.name)
        for one in self._jobs.open:
            one.leaving.finish()

    def check_open(self) -> None:
        """Before a step.

        Raises:
            Stopped: a rank has ended training.
            RuntimeError: the job is finished.
        """
        if not self.closed:
            return
        if (reason := self._link.place.loop.ended) is not None:
            raise Stopped(reason, self._link.round, status=0)
        raise RuntimeError(f"job '{self._link.name}' is finished: step() cannot follow that")

    def finish(self) -> None:
        """Training is complete. Blocks until the final state is saved. The job is left, whatever is raised.

        Raises:
            tributary.NotSaved: it is not.
            Stopped: the last rounds were lost; the same command continues.
        """
        if self.closed:
            return
        self.ends()
        self.if_stopped()
        try:
            self._finish()
        except Error:
            self.close()
            raise
        self.close()
        self._link.part.leave()

    def _finish(self) -> None:
        link = self._link
        while True:
            try:
                self.say_finished()
                link.attachment.session.saved()
                return
            except Unavailable as error:
                here = link.round
                self._jobs.attach_again(link, str(error))
                if (round := link.attachment.began_after) < here:
                    lost = f"the rounds after {round} were lost when the program was at its end"
                    self.as_stopped(f"{lost}; run it again to go on")

    # ---- a rank that fails

    def fail(self, message: str) -> None:
        """Leaves a job that this rank cannot continue; sends the reason to the others. Never raises."""
        link = self._link
        if self.closed:
            return
        try:
            if link.attachment.live is not None:
                link.attachment.live.finish(Leave.FAILED, message)
        except Error as error:
            link.report.say(f"the worker could not be told that this rank failed: {error}")
        self.close()

    def close(self) -> None:
        self.closed = True
        self._jobs.stop.forget(self.answer)
        self._link.report.close()
        self._link.attachment.close()
