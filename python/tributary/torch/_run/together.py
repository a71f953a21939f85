"""The open jobs of a program, which are attached together and continue together."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tributary._errors import Error, JobStopped, Unavailable
from tributary.torch._base.launch import attach_patience_s
from tributary.torch._base.log import logger
from tributary.torch._base.stop import StopSignal

if TYPE_CHECKING:
    from tributary.torch._run.link import Link
    from tributary.torch._run.loop import Loop, Top
    from tributary.torch._run.place import Kept
    from tributary.torch._run.values import Values

PAUSE_SLICE_S = 0.05
LOOK_S = 0.05
NOWHERE = 1 << 62  # of a process that has kept nothing, and continues from the others' place


class Together:
    """The program's jobs. A lost rank is lost to all of them: all end their views, and attach again in the order in
    which the program made them, which is the same on all ranks.

    All continue from the last top of the loop. A rank that is lost in an iteration comes back to the iteration's
    beginning. The jobs that had their round in it are then *ahead*: their part is computed again, and nothing of it is
    sent (Link.ahead).

    Args:
        stop: says when the program is to stop.

    Attributes:
        links: the jobs.
        values: that their ranks gather.
    """

    values: Values

    def __init__(self, stop: StopSignal) -> None:
        self.stop = stop
        self.links: list[Link] = []
        self._attaching = False
        self._round_done = False  # since the last attach that failed, or view that ended
        self._ended = ""  # a rank that this one cannot continue without

    @property
    def open(self) -> list[Link]:
        return [link for link in self.links if not link.closed]

    @property
    def trained(self) -> set[int]:
        """Ids of the parameters that they train."""
        return {id(parameter) for one in self.open for parameter in one.parameters}

    # ---- attaching

    def add(self, link: Link) -> None:
        """Attaches a new job; it must work within its time-out. A rank lost meanwhile may be back before the time-out
        ends.

        Raises:
            JobStopped, tributary.Error: it did not; the job is not among those that are open.
        """
        self.links[:] = self.open
        if joins := any(one.trained for one in self.links):
            link.beside = {one.name: one.round for one in self.links}
        self.links.append(link)
        try:
            with self._attaching_now(link):
                self._attach_first(link)
        except BaseException:
            self.links.remove(link)
            raise
        self._go_on([link] if joins else self.open, link.part.least)

    def _attach_first(self, link: Link) -> None:
        end = time.monotonic() + attach_patience_s(link.attachment.timeout_ms)
        timeout_ms = link.attachment.timeout_ms
        while True:
            try:
                self._attach_missing(timeout_ms)
                return
            except Unavailable as error:
                pause = self._pause_after(link, error)
                timeout_ms = int((end - time.monotonic() - pause) * 1000)
                if timeout_ms <= 0:
                    raise
                link.report.say(f"attaching again in {pause * 1000:.0f} ms: {error}")
                self._pause(pause)

    def attach_again(self, link: Link, reason: str, in_step: bool = True) -> bool:
        """All jobs have new views after it.

        Args:
            link: that lost its view.
            in_step: it is about to complete a round.

        Returns:
            Whether they are where they were. Else they went back.

        Raises:
            Stopped: the program is to stop.
            Unavailable: it was tried often enough.
        """
        for one in self.open:
            one.attachment.drop()
        with self._attaching_now(link):
            self._try_to_attach(link, Unavailable(reason))
        if all(one.is_where_it_was for one in self.open):
            for one in self.open:
                one.push_again()
            return True
        self.values.goes_back()
        for one in self.open:
            one.goes_back(skips=len(self.open) > 1 or not in_step)
        self._go_on(self.open)
        for one in self.open:
            if one is not link or not in_step:
                one.clear()
        return False

    def _try_to_attach(self, link: Link, why: Unavailable) -> None:
        while True:
            if self.stop.requested is not None:
                # Nothing can be said about the parameters: this rank has no complete round in its hands.
                raise link.leaving.was_stopped(str(why))
            pause = self._pause_after(link, why)
            for one in self.open:
                one.report.restarts += 1
            link.report.say(f"attaching again in {pause * 1000:.0f} ms: {why}")
            self._pause(pause)
            try:
                self._attach_missing(link.attachment.timeout_ms)
                return
            except JobStopped as error:
                raise link.leaving.was_stopped(str(error)) from None
            except Unavailable as error:
                why = error

    def _pause_after(self, link: Link, why: Unavailable) -> float:
        """The pause before all jobs attach again. The one that failed knows what its next view waits for."""
        failed = next((one for one in self.open if one.attachment.why_over()), link)
        done, self._round_done = self._round_done, False
        try:
            return failed.attachment.retry(why.status, str(why), done)
        except Unavailable as error:
            raise Unavailable(f"job '{link.name}': {error}", error.status) from None

    def round_done(self) -> None:
        """Attaching was not fruitless."""
        self._round_done = True

    def _attach_missing(self, timeout_ms: int) -> None:
        attached: list[Link] = []
        for one in self.open:
            if one.attachment.why_over():
                one.attachment.drop()
                if one.attached:
                    self._check_beginning(one, attached)
                with self._stopping(attached) as stops, self.stop.attaching():
                    try:
                        one.attachment.make(timeout_ms, stops, one.report.say)
                    except JobStopped:
                        if not self._lost(stops):
                            raise
            attached.append(one)
        for one in attached:
            if why := one.attachment.why_over():
                one.attachment.drop()
                raise Unavailable(why)

    @staticmethod
    def _check_beginning(link: Link, attached: list[Link]) -> None:
        """Raises if others went back to where the program had not begun the job: it continues in a new process, which
        begins the job once more when its loop comes there.
        """
        for other in attached:
            round, began = other.attachment.began_after, link.beside.get(other.name, 0)
            if round < began:
                raise Error(
                    f"job '{link.name}' began after round {began} of job '{other.name}', which went back to round "
                    f"{round}: this process cannot go on, and a new one begins there (tributary run and torchrun start "
                    "it)"
                )

    def _lost(self, stops: ctypes.c_int) -> bool:
        """Whether what ended the wait is that another job lost its view."""
        return stops is not self.stop.flag and stops.value != 0 and self.stop.flag.value == 0

    @contextlib.contextmanager
    def _stopping(self, attached: list[Link]) -> Iterator[ctypes.c_int]:
        """Yields the flag that ends the wait for other ranks in one job: set by a signal, or when a view of the jobs
        attached before it is over. Other ranks wait for this one in those views.
        """
        if not attached:
            yield self.stop.flag
            return
        stops, done = ctypes.c_int(0), threading.Event()

        def look() -> None:
            while not done.wait(LOOK_S):
                if self.stop.flag.value or any(one.attachment.why_over() for one in attached):
                    stops.value = 1
                    return

        thread = threading.Thread(target=look, name="tributary-attach", daemon=True)
        thread.start()
        try:
            yield stops
        finally:
            done.set()
            thread.join()

    def peer_has_ended(self, who: str) -> None:
        """Notes that a rank of those that start again together has ended. Ranks that compute learn of it by themselves;
        a rank that waits for all ranks would wait for one that waits for this one.
        """
        self._ended = f"{who}: ranks with a process group of torch's start again together"
        if self._attaching:
            logger.error("%s", self._ended)
            os._exit(1)

    @contextlib.contextmanager
    def _attaching_now(self, link: Link) -> Iterator[None]:
        self._attaching = True
        try:
            if self._ended:
                raise Error(f"job '{link.name}': {self._ended}")
            yield
        finally:
            self._attaching = False

    def _pause(self, seconds: float) -> None:
        """Or until a signal asks to stop."""
        end = time.monotonic() + seconds
        while self.stop.requested is None and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, PAUSE_SLICE_S))

    # ---- tops

    def at_top(self, loop: Loop, draws: bool) -> None:
        """The loop begins an iteration. draws: its batch is not taken yet."""
        for one in self.open:
            one.at_top(draws)
        state = loop.reaches_top(draws)
        if state is not None:
            for one in self.open:
                one.catch_up()
            self._note_top(loop, state)
            self.values.comes_to_new_top()
            for one in self.open:
                one.keep_top()

    def at_end(self, link: Link) -> None:
        """The program ends after the newest round of this job, without a top of the loop."""
        loop = link.place.loop
        if link.place.round == link.round and (state := loop.ends()) is not None:
            self._note_top(loop, state)
            link.keep_top()

    def _note_top(self, loop: Loop, state: dict[str, Any]) -> None:
        loop.note_top(state, {one.name: one.place.part() for one in self.open})

    def _go_on(self, links: list[Link], least: Callable[[int], int] = lambda position: position) -> None:
        """From the newest top of the loop that one of them has kept.

        Args:
            least: of the positions that this process and others have, which continue from the same top.
        """
        loop = links[0].place.loop
        found = {one.name: one.place.found(one.attachment.session, one.attachment.began_after) for one in links}
        kept = {name: one for name, one in found.items() if one is not None}
        position = least(max((one.position for one in kept.values()), default=NOWHERE))
        kept = {name: one.at(position) for name, one in kept.items()}
        name = max(kept, key=lambda name: (kept[name].top.number, kept[name].left is None), default=links[0].name)
        top = kept[name].top if kept else None
        if not any(one.attachment.began_after for one in links):
            top = loop.first_top if links == self.open else None  # else it joins others in the middle of the loop
        for one in links:
            self._go_on_from(top, one, kept.get(one.name), name)
        if top is not None:
            own = kept[name].mine if kept else True
            next(one for one in links if one.name == name).place.go_on_in_loop(top, own)
            self.values.say_known()
        if any(one.ahead is not None and not one.ahead.dealt_alike for one in links):
            self.values.goes_alone()
        known = top is not None and all(one.name in top.jobs for one in self.open)
        if not known and not any(one.ahead for one in self.open):
            loop.begins()

    @staticmethod
    def _go_on_from(top: Top | None, one: Link, kept: Kept | None, name: str) -> None:
        part = None if top is None else top.jobs.get(one.name)
        round = one.attachment.began_after
        if top is None or part is None or (kept is None and round > part["round"]):  # nothing is known of it
            one.goes_on(None)
        elif round == part["round"]:
            one.goes_on(part)
        elif round > part["round"] and kept is not None and kept.left is not None and kept.top.number == top.number:
            one.goes_on(part, ahead=kept)
        else:
            raise Error(
                f"job '{one.name}' is at round {round}, and it was at {part['round']} when '{name}' had the round that "
                "it is at: jobs of one program go on from the same iteration. Restore checkpoints of one iteration "
                "(tributary checkpoint restore), or begin anew with `tributary run --fresh`"
            )
