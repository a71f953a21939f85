"""A job as this process sees it: attached, attached again after losses, and left in the end."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Callable, NoReturn

import torch

from tributary import _library
from tributary._errors import Error, JobStopped, Status, Unavailable
from tributary._library import AttachOptions, Floats, Gate, Leave, Session, Step, Tensor, View
from tributary.torch._copies import Copies
from tributary.torch._exceptions import Stopped
from tributary.torch._initial import InitialValues
from tributary.torch._launch import attach_patience_s, attach_timeout_ms, topology_of_environment
from tributary.torch._log import logger
from tributary.torch._parallel import Part
from tributary.torch._place import Place
from tributary.torch._progress import Progress, RoundReport
from tributary.torch._retries import Retries
from tributary.torch._round_watch import RoundWatch
from tributary.torch._slots import Slot
from tributary.torch._stop import StopSignal

PAUSE_SLICE_S = 0.05


class Link:
    """Attaches to the node's worker, and keeps the job going.

    Args:
        name: of the job, for messages.
        text: of the job, TOML or JSON.
        tensors: what the job trains.
        stop: says when the program is to stop.
        initial: gives a tensor's initial values, fp32 in logical order, to the memory that it is handed.
        part: of the model that this rank holds.
        held: which of the tensors those are; None: all.
        copies: between the model and the session's memory.
        shares: the model's parameters are where the worker writes them.
        attach_timeout: for the worker and all ranks to be there, seconds; None: as the environment says, else 120.
        accumulate: backward passes a round, whose batches are those of so many ranks.
        batches: of each rank in a round.
        place: what this rank keeps beside the parameters.
    """

    def __init__(
        self,
        name: str,
        text: str,
        tensors: Sequence[Tensor],
        *,
        stop: StopSignal,
        initial: Callable[[int, torch.Tensor], None],
        computes_with: str = "",
        rounds: int = 0,
        part: Part = Part(),  # noqa: B008, it has no state
        held: Sequence[int] | None = None,
        copies: Copies | None = None,
        shares: bool = False,
        attach_timeout: float | None = None,
        accumulate: int = 1,
        batches: int = 1,
        place: Place,
    ) -> None:
        self.name = name
        self.tensors = tensors
        self.part = part
        self._held = range(len(tensors)) if held is None else held
        self.stop = stop
        self._copies = Copies() if copies is None else copies
        self._shares = shares
        self._attach_timeout_ms = attach_timeout_ms(attach_timeout)
        self.progress = Progress(self._tell_figure)
        self._watch = RoundWatch(self.say)
        self.round = 0  # newest round whose parameters are here
        self._began_at = 0  # round that this process went on after
        self.rewinds = 0  # how often the job went back
        self.restarts = 0
        self.rounds = rounds  # of the whole job; 0: unknown
        self.accumulate = accumulate
        self._batches = batches
        self._place = place
        self.rewound_from = 0  # round that the job had when it last went back
        self.closed = False
        self.stopped: Stopped | None = None  # how it was left, if it was stopped
        self.before_leaving: Callable[[], None] = lambda: None
        self._text = text
        self._computes_with = computes_with
        self._fill = initial
        self._initial: InitialValues | None = None
        self._library = _library.load()
        self._keepsake = self._library.keepsake()
        self._session: Session | None = None
        self._view: View | None = None
        self._retries = Retries()
        self._view_began_after = 0
        self._reduced_ns = 0
        self._attaching = False
        self._ended = ""  # a rank that this one cannot go on without
        self._figure_refused = False
        self._pushed = False  # gradients of the open round
        self._leaving = False  # it was told to finish, or that the job stops
        self._not_told = ""  # why it was not
        self._stops = False  # after the newest round, as all ranks of this replica agreed

    # ---- this rank

    @property
    def attached(self) -> bool:
        """Whether it is, or was."""
        return self._view is not None

    @property
    def view(self) -> View:
        if self._view is None:
            raise Error(f"job '{self.name}' is not attached")
        return self._view

    @property
    def session(self) -> Session:
        if self._session is None:
            raise Error(f"job '{self.name}' has no session: it was finished or stopped")
        return self._session

    @property
    def began_after(self) -> int:
        """The round that the view goes on after."""
        return self._view_began_after

    @property
    def trains(self) -> bool:
        """Whether the open round is to be trained. Else it is complete, and the loop goes through it once more."""
        return not self._place.ahead

    @property
    def waits(self) -> bool:
        """Whether a thread waits for a round. Any thread."""
        return self._watch.awaited is not None

    def say(self, text: str) -> None:
        rank = self.view.rank if self.attached else os.environ.get("RANK", "0")
        logger.info("rank %s: %s", rank, text)

    # ---- memory

    def _tensor(self, index: int, floats: Floats) -> torch.Tensor:
        return self._copies.tensor_of(floats, self.tensors[index].shape, self.view.on_device)

    def push(self, index: int, source: torch.Tensor | None, factor: int, weight: int, rate: float) -> None:
        """The tensor's gradient of its next round, over ``weight`` samples: ``source`` times ``factor``, or zeros.

        ``source`` is not to be written until the answer is there.
        """
        if self._place.ahead:
            return
        memory = self._tensor(index, self.session.gradient(index))
        self._pushed = True
        self._copies.give(memory, source, factor)
        self._copies.ready(self.session, index, weight, rate)

    def wait_pushed(self) -> None:
        """Blocks until the copies of what was pushed are done."""
        self._copies.wait_given()

    def parameters(self, index: int) -> torch.Tensor:
        """The tensor's values, fp32, of the parameter's shape. Not to be written."""
        return self._tensor(index, self.session.parameters(index))

    def take(self, slot: Slot) -> None:
        """Writes the job's values into a parameter, when they arrive (:meth:`complete_round`)."""
        self._copies.take(slot, self.parameters(slot.index))

    def take_all(self, slots: Iterable[Slot]) -> None:
        """Of a round that is complete."""
        with self._copies.taking():
            for slot in slots:
                self.take(slot)

    def gate(self, round: int) -> Gate | None:
        """What was decided about a round; None in a job without a gate."""
        return None if self._session is None else self._session.gate(round + self._place.ahead)

    # ---- attaching

    def open(self) -> None:
        """The first attach, which must work within its time-out."""
        self.part.watch(self._peer_has_ended)
        armed = self.stop.arm()
        self.stop.listen(self._answer)
        try:
            with self._attaching_now():
                self._attach_first()
        except BaseException as error:
            self._close()
            if armed:
                self.stop.disarm()
            if not isinstance(error, JobStopped):
                raise
            raise self._ended_stopped(str(error)) from None
        self._began_at = self._view_began_after
        self._go_on()
        if self.view.rank != 0:
            return
        if self._copies.device >= 0:
            path = "stay on the GPU" if self.view.on_device else "go through memory of the host, where the worker sums"
            self.say(f"gradients {path}")
        self.say(
            f"job '{self.name}' goes on after round {self._began_at}"
            if self._began_at
            else f"job '{self.name}' starts at round 0: no state of it is saved"
        )

    def _attach_first(self) -> None:
        """Who is lost while all come together may be back before the time is over."""
        end = time.monotonic() + attach_patience_s(self._attach_timeout_ms)
        timeout_ms = self._attach_timeout_ms
        self._retries.begin(0)
        while True:
            try:
                self._attach(timeout_ms)
                return
            except Unavailable as error:
                pause = self._retries.pause()
                timeout_ms = int((end - time.monotonic() - (pause or 0.0)) * 1000)
                if pause is None or timeout_ms <= 0:
                    raise
                self.say(f"attaching again in {pause * 1000:.0f} ms: {error}")
                self._pause(pause)

    def _attach(self, timeout_ms: int) -> None:
        options = AttachOptions(
            job=self._text,
            tensors=self.tensors,
            topology=topology_of_environment(),
            gradients_move=True,
            device=self._copies.device,
            computes_with=self._computes_with,
            note=self.say,
            keepsake=self._keepsake,
            model_rank=self.part.model_rank,
            holds_parameters=self._shares,
            attach_timeout_ms=timeout_ms,
            stops=self.stop.flag,
        )
        with self.stop.attaching():
            session = self._session_with(options)
        try:
            view = session.view()
            self._session, self._view = session, view
            if view.fresh:
                self._give_initial(session)
            session.start()
        except BaseException:
            self._drop()
            raise
        self._view_began_after = view.resume_round
        self._reduced_ns = 0
        if self.rounds:
            session.last_round(self.rounds)

    def _session_with(self, options: AttachOptions) -> Session:
        try:
            return self._library.attach(options)
        except Error as error:
            if error.status != Status.NO_DEVICE or self._copies.device < 0:
                raise
            self.say(f"each copy between the GPU and the job is waited for: {error}")
            self._copies = Copies()
            return self._library.attach(replace(options, device=self._copies.device))

    def _give_initial(self, session: Session) -> None:
        places = {i: values for i in self._held if (values := session.initial(i)) is not None}
        memory = list(places.values())
        if not memory:
            return
        if self._initial is None:
            for i, values in places.items():
                self._fill(i, self._copies.tensor_of(values, self.tensors[i].shape, on_device=False))
            self._initial = InitialValues(memory)
        else:  # the job begins anew: with what it began with
            self._initial.read(memory)

    def _drop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            self._copies.finish()
            session.destroy()

    def _peer_has_ended(self, who: str) -> None:
        """Of the ranks that hold the model together. Whoever computes finds out by itself; who waits for all ranks to
        be there would wait for one that waits for this one.
        """
        self._ended = f"{who}: ranks that hold a model together start again together"
        if self._attaching:
            logger.error("job '%s': %s", self.name, self._ended)
            os._exit(1)

    @contextlib.contextmanager
    def _attaching_now(self) -> Iterator[None]:
        self._attaching = True
        try:
            if self._ended:
                raise Error(f"job '{self.name}': {self._ended}")
            yield
        finally:
            self._attaching = False

    def _attach_again(self, reason: str) -> None:
        with self._attaching_now():
            self._try_to_attach(reason)

    def _try_to_attach(self, reason: str) -> None:
        self._retries.begin(self.round)
        self._drop()
        while True:
            if self.stop.requested is not None:
                # Nothing can be said about the parameters: this rank has no complete round in its hands.
                raise self._ended_stopped(reason)
            pause = self._retries.pause()
            if pause is None:
                raise Unavailable(
                    f"job '{self.name}': gave up after attaching {self._retries.fruitless} times again without "
                    f"completing a round; the last reason: {reason}"
                )
            self.restarts += 1
            self.say(f"attaching again in {pause * 1000:.0f} ms: {reason}")
            self._pause(pause)
            try:
                self._attach(self._attach_timeout_ms)
                return
            except JobStopped as error:
                raise self._ended_stopped(str(error)) from None
            except Unavailable as error:
                reason = str(error)

    def _pause(self, seconds: float) -> None:
        """Or until a signal asks to stop."""
        end = time.monotonic() + seconds
        while self.stop.requested is None and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, PAUSE_SLICE_S))

    def _answer(self, signal_name: str) -> None:
        """To the first signal, in a thread that sees it at once. An attach ends by itself, and says why."""
        if self.closed or self._session is None:
            return
        round = self._watch.awaited
        if self._leaving:
            when = "the job's state is saved"
        elif round is not None:
            when = f"the parameters of round {round} are there (`tributary status` says why they are not)"
        else:
            when = f"round {self.round + 1} is complete"
        self.say(f"{signal_name}: stops when {when}; a second Ctrl-C ends this rank at once")

    # ---- rounds

    def complete_round(
        self, order: Iterable[int], arrived: Callable[[int], None], push_again: Callable[[], Iterable[int]]
    ) -> bool:
        """Waits for the round that was pushed, whatever is lost meanwhile.

        Args:
            order: the tensors, in the order in which they were pushed.
            arrived: told each tensor whose parameters have come.
            push_again: pushes the open round into a new session; returns the new order.

        Returns:
            False if the job went back, or the open round begins anew: ``self.round`` says whereto, and ``arrived`` was
            told all tensors.

        Raises:
            Stopped: in good order. ``arrived`` was told all tensors.
        """
        if self._place.ahead:
            self.round += 1
            self._place.comes_to_round()
            return True
        with self._copies.taking():
            done = self._complete_round(order, arrived, push_again)
        self._pushed = False
        return done

    def _complete_round(
        self, order: Iterable[int], arrived: Callable[[int], None], push_again: Callable[[], Iterable[int]]
    ) -> bool:
        wanted = self.round + 1
        complete = False
        while True:
            step, reason = Step.CONTINUE, ""
            try:
                if not complete:
                    with self._watch.waiting(wanted):
                        step = self._wait(order, arrived)
                if step in (Step.CONTINUE, Step.STOP_REQUESTED):
                    complete = True
                    stops = self.part.agree(
                        wanted, step == Step.STOP_REQUESTED or self.stop.requested is not None, self._view_is_cut
                    )
                    if stops is not None:
                        self.round = wanted
                        self._retries.round_done()
                        self._stops = stops
                        return True
                    step = Step.RESTART
                reason = self.session.stop_reason()
            except Unavailable as error:
                step, reason = Step.RESTART, str(error)
            if step == Step.VIEW_STOPPED:
                self.leave_stopped(reason)
            before = self.view
            self._attach_again(reason)
            round = self._view_began_after
            complete = round == wanted
            if round == wanted - 1 and not self._is_shared_anew(before):
                order = list(push_again())
                continue
            for index in self._held:
                arrived(index)
            if complete:
                self.say(f"round {wanted} is complete")
                continue
            self.rewound_from = wanted - 1
            self.rewinds += 1
            self._go_on()
            return False

    def _is_shared_anew(self, before: View) -> bool:
        """Whether the open round has other batches now: those of before were shared out to other ranks."""
        ranks = (self.view.rank, self.view.world_size)
        return ranks != (before.rank, before.world_size) and self._place.is_dealt

    def _view_is_cut(self) -> bool:
        """Whether it ended when this rank had all of the round. Others may not have it, and attach again."""
        return self.session.wait() == Step.RESTART

    def _wait(self, order: Iterable[int], arrived: Callable[[int], None]) -> Step:
        session = self.session
        asked = False
        for index in order:
            step = session.wait(index)
            if step == Step.STOP_REQUESTED:
                asked = True
            elif step != Step.CONTINUE:
                return step
            arrived(index)
        # Only when all of the round is there a stop is said.
        step = session.wait()
        return Step.STOP_REQUESTED if asked and step == Step.CONTINUE else step

    def _go_on(self) -> None:
        """With what was kept of the round that the view began after."""
        self._place.go_on(self.session, self._view_began_after, self._batches)
        self.round = self._view_began_after - self._place.ahead
        if self._place.unknown:
            logger.warning(
                "rank %d: %s for this rank. Schedulers, random generators and what was given to keep() begin anew, and "
                "a DistributedSampler goes on as if all rounds had taken as many batches",
                self.view.rank,
                self._place.unknown,
            )

    def round_leaves(self) -> None:
        """The open round's first gradient is about to be pushed: what belongs to the round is kept."""
        self._place.round_leaves(self.session, self.round + 1)

    def at_top(self, draws: bool) -> None:
        """The loop begins its next round."""
        if self._session is not None and not self.closed:
            self._place.at_top(self._session, draws)

    def report(self, samples: int, compute_ns: int, blocked_ns: int) -> None:
        """Tells the round's figures to whoever shows them."""
        stats = self.session.stats()
        reduce_ns = min(blocked_ns, max(0, stats.reduce_ns - self._reduced_ns))
        self._reduced_ns = stats.reduce_ns
        gate = self.session.gate(self.round)
        self.progress.round_done(
            RoundReport(
                rank=self.view.rank,
                world_size=self.view.world_size,
                replicas=self.view.world_size if self.part.replica is None else self.part.replicas,
                restarts=self.restarts,
                resumed=self._view_began_after,
                complete=self.round,
                rounds=self.rounds,
                samples=samples,
                compute_ns=compute_ns,
                reduce_ns=reduce_ns,
                wait_ns=blocked_ns - reduce_ns,
                gradient_norm=gate.norm if gate else None,
                loss_scale=gate.loss_scale if gate else None,
                skipped=gate.skipped if gate else None,
            )
        )

    def _tell_figure(self, round: int, name: str, mean: float, samples: int) -> None:
        if self._session is None:
            return
        try:
            self._session.log(round, name, mean, samples)
        except Error as error:  # figures are never worth a job
            if not self._figure_refused:
                logger.warning("%s", error)
            self._figure_refused = True

    # ---- leaving

    def leave_if_stopped(self) -> None:
        """Leaves the job if a rank of this replica was told to stop when the newest round was complete."""
        if self._stops and not self.closed:
            self.leave_stopped()

    def say_stopped(self) -> None:
        """Leaves the job as one that stops, without waiting for what comes of it."""
        if self.closed or self._leaving:
            return
        self._leaving = True
        try:
            self.session.finish(Leave.STOPPED, self._told)
        except Error as error:
            self._not_told = str(error)

    def leave_stopped(self, reason: str = "") -> NoReturn:
        """Leaves a job that stops after this round. Always raises :class:`Stopped`."""
        self.before_leaving()
        self.say_stopped()
        not_saved = self._not_told
        if not not_saved:
            try:
                self.session.saved()
            except Error as error:
                not_saved = str(error)
        why = reason or self.session.stop_reason() or self._told or "the job was asked to stop"
        stopped = self._ended_stopped(why, not_saved)
        self.part.leave()
        raise stopped

    @property
    def _told(self) -> str:
        return f"rank {self.view.rank} was told to stop ({self.stop.requested})" if self.stop.requested else ""

    def _ended_stopped(self, why: str, not_saved: str = "") -> Stopped:
        self.say(f"stopped after round {self.round}: {why}" if self.attached else f"stopped: {why}")
        if not_saved:
            self.say(f"not saved: {not_saved}")
        self._close()
        self.stopped = Stopped(why, self.round)
        return self.stopped

    def finish(self) -> None:
        """Training is complete. Blocks until the final state is saved. The job is left, whatever is raised.

        Raises:
            tributary.NotSaved: it is not.
            Stopped: the last rounds were lost; the same command goes on.
        """
        if self.closed:
            return
        if self.round and self.round == self._began_at and not self.rewinds and self.view.rank == 0:
            logger.warning(
                "job '%s' was at round %d when this program began, and no round was trained: to train on, give the "
                "program more epochs; to begin anew, another name= or `tributary run --fresh`",
                self.name,
                self.round,
            )
        if self._pushed:
            logger.warning(
                "job '%s': gradients of round %d have left, and no step() followed: what is saved may have that round "
                "in it, or not. Call backward() after the last step() only if the job is finish()ed before",
                self.name,
                self.round + 1,
            )
        if self._session is not None:
            self._place.at_end(self._session, self.round)
        self.leave_if_stopped()
        try:
            self._finish()
        except Error:
            self._close()
            raise
        self._close()
        self.part.leave()

    def _finish(self) -> None:
        while True:
            self._leaving = True
            try:
                self.session.finish(Leave.FINISHED)
                self.session.saved()
                return
            except Unavailable as error:
                self._leaving = False
                self._attach_again(str(error))
                if self._view_began_after < self.round:
                    lost = f"the rounds after {self._view_began_after} were lost when the program was at its end"
                    self.round = self._view_began_after
                    self.leave_stopped(f"{lost}; run it again to go on")

    def fail(self, message: str) -> None:
        """This rank cannot go on; the others are told why. Never raises."""
        if self.closed:
            return
        try:
            if self._session is not None:
                self._session.finish(Leave.FAILED, message)
        except Error as error:
            self.say(f"the worker could not be told that this rank failed: {error}")
        self._close()

    def _close(self) -> None:
        self.closed = True
        self.stop.forget(self._answer)
        self.progress.close()
        self._watch.close()
        self._drop()
        if self._initial is not None:
            self._initial.close()
