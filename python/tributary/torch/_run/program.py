"""One program's state: the signal to stop, the jobs to be finished at its end, and its rank."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import multiprocessing.util
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Callable, NoReturn

from tributary._errors import Error
from tributary.torch._base.exceptions import EXIT_STOPPED, Stopped
from tributary.torch._base.launch import say_topology
from tributary.torch._base.log import logger
from tributary.torch._base.names import default_name
from tributary.torch._base.stop import StopSignal, let_loaders_end
from tributary.torch._run.link import Link
from tributary.torch._run.loop import Loop
from tributary.torch._run.together import Together
from tributary.torch._run.values import Values


class Program:
    """Leaves all jobs when the program ends: finished, or failed with the exception or the status that ended it."""

    def __init__(self) -> None:
        self.stop = StopSignal()
        self.jobs = Together(self.stop)
        self.names: list[str] = []  # of all jobs that there were
        self.begin_loop()
        self.scaled_losses = 0  # by GradScalers
        self.awaits: list[threading.Thread] = []  # that the end waits for, when the jobs are left
        self._leads: Link | None = None  # whose round comes first in an iteration of the loop
        self._failure: str | None = None
        self._stopped = False  # by a signal, which took something that the loop cannot continue without
        self._hooked = False

    def begin_loop(self) -> None:
        """Begins with a new loop: the program has no state to continue from yet."""
        self.values = self.jobs.values = Values(self.jobs)
        self.loop = Loop(self._passes_top, self.values)
        self._said_anew = False

    @property
    def links(self) -> list[Link]:
        """Links of the jobs, in the order in which these were made."""
        return self.jobs.links

    def open(self, link: Link) -> None:
        """Attaches, and leaves the job at the program's end.

        Raises:
            ValueError: the program has an open job of this name.
            Stopped, tributary.Error: as Link.open().
        """
        if any(known.name == link.name for known in self.jobs.open):
            raise ValueError(
                f"job '{link.name}' is open in this program: finish() it before it goes on with another optimizer, or "
                "give another name="
            )
        link.leaving.before_stopped = self._say_stopped
        self._hook()
        link.open()
        self.names.append(link.name)

    def _hook(self) -> None:
        if self._hooked:
            return
        self._hooked = True
        atexit.register(self.end)
        os.register_at_fork(after_in_child=self._forked)
        if multiprocessing.parent_process() is not None:  # a process that it has forked runs no atexit functions
            multiprocessing.util.Finalize(None, self._end_as_child, exitpriority=0)
        before = sys.excepthook

        def note(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            let_loaders_end()
            said = traceback.format_exception_only(kind, error)[-1].strip()
            # Signals reach processes that it needs, too, where whole groups get them (a terminal under torchrun, Slurm,
            # systemd): all that loads data, for one.
            self._stopped = bool(self.jobs.open) and self.stop.comes()
            if self._stopped:
                logger.info("stops now, because the loop cannot go on: %s", said)
                return
            self._failure = said
            before(kind, error, trace)

        sys.excepthook = note
        # Python shows no hook, and no atexit function, the SystemExit that ends a program.
        for module, name in ((sys, "exit"), (builtins, "exit"), (builtins, "quit")):
            if hasattr(module, name):
                setattr(module, name, self._noting(getattr(module, name)))

    def _noting(self, leave: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
        """Notes the exit status. It is how the program ends, unless it trains on: then its exception was caught."""

        def noted(code: Any = None) -> NoReturn:
            if threading.current_thread() is threading.main_thread():
                self._failure = f"sys.exit({code!r})" if code is not None and code != 0 else None
            leave(code)

        return noted

    def _end_as_child(self) -> None:
        """At the end of a process of multiprocessing, which shows no hook the exception that ends it."""
        error = sys.exc_info()[1]
        if isinstance(error, SystemExit):  # mp.spawn makes one of an exception
            error = error.__context__ if self._failure is not None else None
        if error is not None:
            self._failure = traceback.format_exception_only(type(error), error)[-1].strip()
        self.end()

    def _forked(self) -> None:
        """In the child: the jobs are its parent's."""
        self.stop.forked()
        for link in self.links:
            link.leaving.closed = True
        self.links.clear()

    def _say_stopped(self) -> None:
        """A job stops, and so all do: ranks that wait for this one in another job learn it before this rank waits."""
        let_loaders_end()
        for link in self.links:
            link.leaving.say_stopped()

    def _passes_top(self) -> None:
        """A batch is taken: what was done belongs to the rounds that are complete, and a stop is after them."""
        self._at_top(draws=True)

    def first_gradient(self, link: Link) -> None:
        """Notes a round's first gradient: the top of a loop without samplers, if this job's rounds come first."""
        if self._leads is None or self._leads.closed:
            self._leads = link
        if link.began_at and not self._said_anew and self.loop.begins_data_anew:
            self._said_anew = True
            logger.warning(
                "rank %d: job '%s' goes on after round %d, but the loop's DataLoader begins its data anew: iterate "
                "tributary.torch.batches(loader), or give it sampler=tributary.torch.DistributedSampler(dataset)",
                link.view.rank,
                link.name,
                link.began_at,
            )
        void = link.skips and self.loop.draws  # the top is where the next batch is taken
        if link is self._leads and not void:
            self._at_top(draws=False)

    def _at_top(self, draws: bool) -> None:
        self._failure = None
        self.values.passes_top()
        if not self.loop.arrived:
            self.loop.passed_top(draws)
        self.jobs.at_top(self.loop, draws)
        for link in self.links:
            link.leaving.if_stopped()
        self.loop.passed_top(draws)
        if self.loop.ended is not None:
            self.finish()

    @property
    def round(self) -> int:
        """How many rounds of its jobs are complete: it changes with each."""
        return sum(link.round for link in self.links)

    @property
    def rewinds(self) -> int:
        """How often its jobs went back."""
        return sum(link.rewinds for link in self.links)

    @property
    def accumulate(self) -> int:
        """Batches of a rank in a round."""
        link = self.link
        return 1 if link is None else link.accumulate

    @property
    def link(self) -> Link | None:
        """The first job that is attached, or was last."""
        return next((link for link in self.links if link.attached), None)

    def free_name(self) -> str:
        """A name for another job, that none of this program had."""
        return default_name(self.names)

    def finish(self) -> None:
        """Leaves all jobs as finished; what comes of them is raised."""
        self._say_finished()
        for link in self.links:
            link.leaving.finish()
        self._wait_for_others()

    def _wait_for_others(self) -> None:
        while self.awaits:
            self.awaits.pop().join()

    def _say_finished(self) -> None:
        """Reports all jobs finished before it waits: a rank that is lost then has all jobs before it, or none."""
        for link in self.links:
            link.leaving.ends()
        for link in self.links:
            with contextlib.suppress(Error):  # reported again, and awaited
                link.leaving.say_finished()

    def end(self) -> None:
        """At the end of the program, which can only say what went wrong by its exit status."""
        stopped = self._stopped or any(link.leaving.stopped for link in self.links)
        status = 0
        if self._failure is None and not stopped and not any(link.waits for link in self.links):
            self._say_finished()
        for link in self.links:
            if link.waits:  # in another thread, under which no session can be ended; the worker sees the process end
                logger.error("job '%s': the program ended while a thread was inside step()", link.name)
                status = 1
                continue
            if self._failure is not None:
                link.leaving.fail(self._failure)
                continue
            try:
                if stopped and not link.closed:
                    link.leaving.as_stopped("" if self._stopped else "another job of this program stopped")
                link.leaving.finish()
            except Stopped as error:
                logger.error("job '%s': %s", link.name, error)
                status = int(str(error.code))
            except Error as error:
                logger.error("job '%s': %s", link.name, error)
                status = 1
        if self._failure is None:
            self._wait_for_others()
        watches = any(link.part.watches for link in self.links)
        if status or watches:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status or int(self._failure is not None) or (EXIT_STOPPED if stopped else 0))


program = Program()


def init(rank: int, world_size: int, local_world_size: int | None = None) -> None:
    """Says what rank this process is, in a program that starts its ranks itself (``mp.spawn``). A launcher (torchrun,
    ``tributary run``) says so without this call.

    To be called in each rank's process, before :func:`rank`, a sampler or an optimizer is made.

    Args:
        rank: among all ranks of the job, from 0. The ranks of a node follow one another.
        world_size: how many ranks there are.
        local_world_size: how many each node has; default: ``LOCAL_WORLD_SIZE`` of the environment, else all.

    Raises:
        ValueError: there are no such ranks, or a launcher has said something else.
        RuntimeError: this process is a rank of a job already.
    """
    if program.link is not None:
        raise RuntimeError("init(): call it before the first optimizer is made; this process is a rank of a job")
    say_topology(rank, world_size, local_world_size)


def rank() -> int:
    """This process' rank among all of the job."""
    link = program.link
    return link.view.rank if link is not None else of_environment("RANK", 0)


def world_size() -> int:
    """How many ranks the job has."""
    link = program.link
    return link.view.world_size if link is not None else of_environment("WORLD_SIZE", 1)


def replica() -> int:
    """Which replica of the model this process has, or has a part of: data-parallel ranks count from 0."""
    link = program.link
    place = link.part.replica if link is not None else None
    return rank() if place is None else place


def replicas() -> int:
    """How many replicas of the model the job has."""
    link = program.link
    return world_size() if link is None or link.part.replica is None else link.part.replicas


def of_environment(name: str, otherwise: int) -> int:
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
            `tributary run` shows ``loss``, ``accuracy`` and ``test_accuracy``; `tributary status` and the metrics of
            server 0 show all. Figures of a batch that counts nothing (:func:`batches`) are left out.

    Raises:
        ValueError: there are too many.
    """
    link = program.link
    if link is not None and not program.loop.is_void:
        values = link.report.progress.log(figures)
        program.values.log(values)


def keep(**objects: Any) -> None:
    """Objects whose state belongs to the place in the data. It is kept with each round. A process that continues gets
    it in this call.

    An iterable (the loader of a loop: :func:`batches`) gives its state in the backward pass, every other object (a
    moving average) when the loop begins the next round. Call this before the loop, on every rank.

    Args:
        objects: with ``state_dict()`` and ``load_state_dict()``; of numbers, text, tensors, arrays and containers of
            them, 256 KiB together with buffers.

    Raises:
        TypeError: one of them has no such methods, or a state of another kind.
    """
    program.loop.keep(objects)


def epochs(count: int | None = None) -> Iterator[int]:
    """``range(count)``, from the epoch that is open: in a process that continues, the job's.

    Args:
        count: of the whole job; None: without end.
    """
    return program.loop.epochs(count)


def rounds(count: int) -> Iterator[int]:
    """``range(count)``, from the round after which this process continues: how many rounds are complete.

    Raises:
        RuntimeError: no optimizer has been made yet.
    """
    link = program.link
    if link is None:
        raise RuntimeError("rounds(): make the DistributedOptimizer first; it knows where the job is")
    program.loop.told = True
    return iter(lambda: link.round if link.round < count and program.loop.ended is None else None, None)


def stop(reason: str) -> None:
    """Ends training on all ranks, on the word of this one: by a figure of its own, say.

    This rank's training ends where its loop takes the next batch, or begins the next round. The other ranks' training
    ends with the same round. On all of them :func:`epochs`, :func:`rounds` and a :class:`DistributedSampler` that
    trains give nothing more, the job is finished and saved, and what follows the loop runs. A ``step()`` after that
    raises :class:`Stopped`, with exit status 0.

    Args:
        reason: which all ranks log.

    Raises:
        ValueError: no reason.
        RuntimeError: there is no open job, or ranks have a process group of torch's, or a mesh: one that leaves would
            leave the others waiting there. They have to leave the loop alike, by :func:`all_reduce`.
    """
    if not reason:
        raise ValueError("stop(reason): say why, which all ranks log")
    if not program.jobs.open:
        raise RuntimeError("stop(): there is no open job")
    if any(link.part.starts_together for link in program.jobs.open):
        raise RuntimeError(
            "stop(): ranks have a process group of torch's (init_process_group, mesh=), and wait there for one that "
            "has left: let all break off by a figure that they agree on (tributary.torch.all_reduce)"
        )
    program.loop.ended = reason
    for link in program.jobs.open:
        link.leaving.for_all = reason


def finish() -> None:
    """Leaves all jobs as finished, and waits until their state is saved. At the end of a program it is done by itself.

    Raises:
        tributary.NotSaved: the final state is not durable, and why.
    """
    program.finish()
