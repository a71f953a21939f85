"""What a whole program has one of: the signal to stop, the jobs that are to be finished at its end, and who this is."""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from types import TracebackType
from typing import Any

from tributary._errors import Error
from tributary.torch._exceptions import Stopped
from tributary.torch._job import default_name
from tributary.torch._link import Link
from tributary.torch._log import logger
from tributary.torch._stop import StopSignal


class Program:
    """Leaves all jobs when the program ends: finished, or failed with the exception that ended it."""

    def __init__(self) -> None:
        self.stop = StopSignal()
        self.links: list[Link] = []
        self._failure: str | None = None
        self._hooked = False

    def add(self, link: Link) -> None:
        self.links = [known for known in self.links if not known.closed]
        self.links.append(link)
        if self._hooked:
            return
        self._hooked = True
        atexit.register(self.end)
        before = sys.excepthook

        def note(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            self._failure = traceback.format_exception_only(kind, error)[-1].strip()
            before(kind, error, trace)

        sys.excepthook = note

    @property
    def link(self) -> Link | None:
        """The first job that is attached, or was last."""
        return self.links[0] if self.links else None

    def free_name(self) -> str:
        """A name for another job, that no open one has."""
        return default_name([link.name for link in self.links if not link.closed])

    def finish(self) -> None:
        """Leaves all jobs as finished; what comes of them is raised."""
        for link in self.links:
            link.finish()
        self.stop.disarm()

    def end(self) -> None:
        """At the end of the program, which can only say what went wrong by its exit status."""
        status = 0
        for link in self.links:
            if self._failure is not None:
                link.fail(self._failure)
                continue
            try:
                link.finish()
            except Stopped as stopped:
                logger.error("job '%s': %s", link.name, stopped)
                status = int(str(stopped.code))
            except Error as error:
                logger.error("job '%s': %s", link.name, error)
                status = 1
        if status or any(link.part.watches for link in self.links):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status or int(self._failure is not None))


program = Program()


def rank() -> int:
    """This process' rank among all of the job."""
    link = program.link
    return link.view.rank if link is not None else _of_environment("RANK", 0)


def world_size() -> int:
    """How many ranks the job has."""
    link = program.link
    return link.view.world_size if link is not None else _of_environment("WORLD_SIZE", 1)


def replica() -> int:
    """Which replica of the model this process has, or has a part of: data-parallel ranks count from 0."""
    link = program.link
    place = link.part.replica if link is not None else None
    return rank() if place is None else place


def replicas() -> int:
    """How many replicas of the model the job has."""
    link = program.link
    return world_size() if link is None or link.part.replica is None else link.part.replicas


def _of_environment(name: str, otherwise: int) -> int:
    text = os.environ.get(f"TRIBUTARY_{name}", os.environ.get(name))
    if text is None:
        return otherwise
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name}={text} in the environment is no number; torchrun and tributary run set it") from None


def log(**figures: Any) -> None:
    """Says figures of the newest round, before or after ``step()``: means over this rank's samples.

    Args:
        figures: ``loss``, ``accuracy`` (a share), ``samples`` (how many they are means of; by default what is known of
            the round), ``test_loss``, ``test_accuracy``, or others, at most 32. Numbers, or tensors of one element.
            `tributary run` shows those named here; `tributary status` and the metrics of server 0 show all.

    Raises:
        ValueError: there are too many.
    """
    link = program.link
    if link is not None:
        link.progress.log(figures)


def finish() -> None:
    """Leaves all jobs as finished, and waits until their state is saved. At the end of a program it is done by itself.

    Raises:
        tributary.NotSaved: the final state is not durable, and why.
    """
    program.finish()
