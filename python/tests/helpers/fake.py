"""A library in Python in place of libtributary.so: one rank and one server, which fail on request."""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import mmap
import time
from collections.abc import Sequence
from typing import Any, Callable
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tributary._errors import Error, JobStopped, Status, Unavailable
from tributary._library import AttachOptions, FirstState, Gate, Kept, Leave, Stats, Step, View

NOTHING = Kept(b"", memoryview(b""), True)


class FakeRecovery:
    """Pauses as it is told, and gives up after so many tries."""

    def __init__(self) -> None:
        self.pause_s = 0.0
        self.left = 1000
        self.asked: list[bool] = []

    def retry(self, why: int, reason: str, round_done: bool) -> float:
        if why not in (Status.STALE_VIEW, Status.TIMEOUT, Status.UNAVAILABLE):
            raise Error(f"nothing helps: {reason}", why)
        self.asked.append(round_done)
        self.left -= 1
        if self.left < 0:
            raise Unavailable(f"gave up: {reason}", Status.UNAVAILABLE)
        return self.pause_s


class FakeLibrary:
    """Holds what daemons would: a job's parameters of all rounds, stepped by plain SGD (or the mean).

    Attributes:
        events: what happens instead of the answer to a round, once: ``"lost"`` (the round is, and a view goes on before
            it), ``"late"`` (the view ends when the round is complete), ``"torn"`` (when one of its tensors has
            arrived), ``"gone"`` (the worker is), ``"back to R"``, ``"stop"``, ``"stopped"``,
            ``"trained"`` (another rank has ended training).
        refuse: errors of the next attaches.
        alone: called by an attach that then waits, for a missing rank, until it is to stop.
        attaches: their options.
        stream: of the GPU that a program is on; None: it is on none.
        others: what the ranks after this one give where this one gives so much.
        answers: what calls came to, by their keys, for a process that asks once more.
        gather_events: as ``events``, by how many calls were answered.
    """

    def __init__(self) -> None:
        self.rounds: list[list[list[float]]] = []
        self.events: dict[int, str] = {}
        self.refuse: list[Error] = []
        self.alone: Callable[[], None] | None = None
        self.attaches: list[AttachOptions] = []
        self.sessions: list[FakeSession] = []
        self.jobs: list[str] = []
        self.tensors: list[Any] = []
        self.pushes: list[dict[str, Any]] = []
        self.figures: list[tuple[int, str, float, int]] = []
        self.loss_scale = 1024.0
        self.kept: dict[int, Kept] = {}  # by round
        self.kept_by_first: dict[int, Kept] = {}
        self.gives = False  # this rank gives the first state
        self.stream: FakeStream | None = None
        self.others: Callable[[bytes], list[bytes]] = lambda data: []
        self.answers: dict[tuple[int, int], list[bytes]] = {}
        self.gathered: list[tuple[int, int, bytes]] = []
        self.gather_events: dict[int, str] = {}
        self.retries = FakeRecovery()
        self.short: list[str] = []  # why each of the next views is over as soon as it has begun

    def recovery(self) -> FakeRecovery:
        return self.retries

    def attach(self, options: AttachOptions) -> FakeSession:
        self.attaches.append(options)
        assert options.stops is not None
        if self.alone is not None:
            self.alone()
            while options.stops.value == 0:
                time.sleep(0.01)
        if options.stops.value != 0:
            raise JobStopped("told to stop while it waited for node 1", Status.STOPPED)
        if self.refuse:
            raise self.refuse.pop(0)
        self.jobs.append(options.job)
        self.tensors = list(options.tensors)
        self.sessions.append(FakeSession(self, options))
        return self.sessions[-1]

    @property
    def session(self) -> FakeSession:
        return self.sessions[-1]

    @property
    def last(self) -> list[list[float]]:
        return self.rounds[-1]


class FakeSession:
    def __init__(self, library: FakeLibrary, options: AttachOptions) -> None:
        self.library = library
        job = json.loads(options.job)
        self.mean = job.get("optimizer", {}).get("name") == "mean"
        self.gated = "gate" in job
        self.elements = [tensor.elements for tensor in options.tensors]
        self.held = [not tensor.holders or options.model_rank in tensor.holders for tensor in options.tensors]
        self.fresh = not library.rounds
        self.round = max(0, len(library.rounds) - 1)
        self.resumed = self.round
        # Shared, so that pages are no process' own.
        self.parameters_of = [(ctypes.c_float * n).from_buffer(mmap.mmap(-1, 4 * n)) for n in self.elements]
        self.gradients_of = [[(ctypes.c_float * n)() for n in self.elements] for _ in range(2)]
        self.said: dict[int, tuple[int, float]] = {}
        self.settings: dict[int, tuple[float, float]] = {}  # by group: weight decay, momentum
        self.unsaid = 0  # that a stream has still to say
        self.left: tuple[Leave, str] | None = None
        self.was_saved = False
        self.reason = ""
        self.over: Step | None = None
        self.destroyed = False

    @property
    def first_state(self) -> FirstState:
        if self.library.gives:
            return FirstState.GIVEN
        return FirstState.COMES if self.library.kept_by_first else FirstState.NONE

    def view(self) -> View:
        return View(0, 1, 0, 1, 0, self.fresh, False, self.resumed, 1, self.first_state)

    def initial(self, tensor: int) -> Any:
        assert self.fresh
        return self.parameters_of[tensor]

    def start(self) -> None:
        if self.fresh:
            self.library.rounds.append([list(values) for values in self.parameters_of])
        self._answer()
        if self.library.short:
            self._end(Step.RESTART, self.library.short.pop(0))

    def _answer(self) -> None:
        for memory, values in zip(self.parameters_of, self.library.rounds[self.round]):
            memory[:] = values

    def gradient(self, tensor: int) -> Any:
        assert not self.destroyed
        return self.gradients_of[self.round % 2][tensor]

    def parameters(self, tensor: int) -> Any:
        assert not self.destroyed
        return self.parameters_of[tensor]

    def group_settings(self, group: int, weight_decay: float, momentum: float) -> None:
        assert group in {tensor.group for tensor in self.library.tensors}
        self.settings[group] = (weight_decay, momentum)

    def ready(self, tensor: int, weight: int, rate: float) -> None:
        if tensor in self.said:
            raise Error("ready() came twice", Status.WRONG_ROUND)
        self.said[tensor] = (weight, rate)
        self.parameters_of[tensor][:] = [math.nan] * self.elements[tensor]  # not to be read until the answer

    def ready_after(self, tensor: int, weight: int, rate: float, stream: int) -> None:
        assert self.library.stream is not None
        assert stream == self.library.stream.cuda_stream
        self.unsaid += 1

        def says() -> None:
            self.unsaid -= 1
            self.ready(tensor, weight, rate)

        self.library.stream.queue.append(says)

    def wait(self, tensor: int = -1) -> Step:
        if self.unsaid and self.library.stream is not None:
            self.library.stream.run()  # what it still has to say comes before an answer
        if self.over is not None:
            return self.over
        if self.said:
            assert len(self.said) == sum(self.held), "it would wait for ever"
            return self._complete()
        return Step.CONTINUE

    def _complete(self) -> Step:
        event = self.library.events.pop(self.round + 1, "")
        over = self._over_by(event)
        if over is not None:
            return over
        self._step()
        if event == "late":
            return self._end(Step.RESTART, "server 0 was lost")
        self.said.clear()
        if event == "torn":
            self._end(Step.RESTART, "server 0 was lost")
            return Step.CONTINUE
        return Step.STOP_REQUESTED if event == "stop" else Step.CONTINUE

    def _over_by(self, event: str) -> Step | None:
        """The view ends by it; None: it does not."""
        if event == "gone":
            raise Unavailable("the worker daemon is gone", Status.UNAVAILABLE)
        if event == "lost":
            return self._end(Step.RESTART, "node 1 was lost")
        if event.startswith("back to "):
            del self.library.rounds[int(event.split()[-1]) + 1 :]
            return self._end(Step.RESTART, "all servers were lost")
        if event == "stopped":
            return self._end(Step.VIEW_STOPPED, "somebody asked for it")
        if event == "trained":
            return self._end(Step.TRAINED, "rank 1 ended training: it is good enough")
        return None

    def _end(self, step: Step, reason: str) -> Step:
        self.over, self.reason = step, reason
        return step

    def _step(self) -> None:
        weights = {weight for weight, _ in self.said.values()}
        assert len(weights) == 1, f"weights differ: {weights}"
        gradients = [list(self.gradient(t)) for t in range(len(self.elements))]
        self.library.pushes.append(
            {
                "gradients": gradients,
                "weight": weights.pop(),
                "rates": {t: rate for t, (_, rate) in self.said.items()},
                "settings": dict(self.settings),
            }
        )
        before = self.library.rounds[self.round]
        after = []
        for tensor, gradient in enumerate(gradients):
            weight, rate = self.said.get(tensor, (1, 0.0))  # another rank holds it
            mean = [g / max(1, weight) for g in gradient]
            step = 0.1 if rate < 0 else rate
            after.append(mean if self.mean else [p - step * g for p, g in zip(before[tensor], mean)])
        self.library.rounds.append(after)
        self.round += 1
        self._answer()

    def keep(self, round: int, state: bytes, large: Sequence[tuple[int, int]] = (), whole: bool = True) -> None:
        assert round in (self.round, self.round + 1), "of the round that is complete, or that is open"
        assert not self.said, "before the open round's first gradient"
        copied = b"".join(ctypes.string_at(address, size) for address, size in large)
        self.library.kept[round] = Kept(state, memoryview(copied), whole)

    def wanted_round(self) -> int:
        return 0

    def kept_state(self) -> Kept:
        return self.library.kept.get(self.resumed, NOTHING)

    def kept_state_of_first(self) -> Kept:
        return self.library.kept_by_first.get(self.resumed, NOTHING)

    def gather(self, round: int, number: int, data: bytes) -> list[bytes] | Step:
        assert not self.destroyed
        if self.over is not None:
            return self.over
        over = self._over_by(self.library.gather_events.pop(len(self.library.gathered), ""))
        if over is not None:
            return over
        self.library.gathered.append((round, number, data))
        if (round, number) not in self.library.answers:
            self.library.answers[round, number] = [data, *self.library.others(data)]
        return self.library.answers[round, number]

    def gathered(self, round: int, number: int, values: list[bytes]) -> None:
        self.library.answers.setdefault((round, number), values)

    def gate(self, round: int) -> Gate | None:
        return Gate(False, 1.0, 1.0, self.library.loss_scale) if self.gated else None

    def stop_reason(self) -> str:
        return self.reason

    def log(self, round: int, name: str, mean: float, samples: int) -> None:
        self.library.figures.append((round, name, mean, samples))

    def stats(self) -> Stats:
        return Stats(0, 0, 0)

    def last_round(self, round: int) -> None:
        pass

    def finish(self, leave: Leave, message: str = "") -> None:
        self.left = (leave, message)

    def saved(self) -> None:
        assert self.left is not None
        self.was_saved = True

    def destroy(self) -> None:
        if self.library.stream is not None:
            assert not self.library.stream.queue, "a copy is under way"
            assert self.library.stream.has_all_of_program, "the program may still read"
        self.destroyed = True
        for memory in [*self.gradients_of[0], *self.gradients_of[1]]:  # parameters may still be held
            memory[:] = [math.nan] * len(memory)


class FakeStream(TorchDispatchMode):
    """Stream of a GPU that computes nothing before it must: copies on it are made when a thread waits for it."""

    cuda_stream = 77

    def __init__(self) -> None:
        super().__init__()
        self.queue: list[Callable[[], Any]] = []
        self.has_all_of_program = True  # no kernel of the program may still run when this stream is done

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.copy_.default, torch.ops.aten.zero_.default):
            self.queue.append(lambda: func(*args, **(kwargs or {})))
            return args[0]
        return func(*args, **(kwargs or {}))

    def run(self) -> None:
        queue, self.queue = self.queue, []
        for call in queue:
            call()

    synchronize = run

    def wait_stream(self, other: FakeProgramStream | FakeStream) -> None:
        """Work on the program's own stream was done at once; this stream stands for all of ours."""
        self.has_all_of_program = True


class FakeProgramStream:
    """A program's own stream."""

    def __init__(self, other: FakeStream) -> None:
        self._other = other

    def synchronize(self) -> None:
        self._other.has_all_of_program = True

    def wait_stream(self, stream: FakeStream) -> None:
        stream.run()
        stream.has_all_of_program = False  # it continues, and reads the session's memory


class FakeCuda:
    """In place of ``torch.cuda``."""

    def __init__(self, stream: FakeStream) -> None:
        self._stream = stream

    def Stream(self, device: torch.device) -> FakeStream:  # noqa: N802, torch's name
        return self._stream

    def device(self, device: torch.device) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def stream(self, stream: FakeStream) -> FakeStream:
        return stream  # a context in which work is put on it

    def current_stream(self, device: torch.device) -> FakeProgramStream:
        return FakeProgramStream(self._stream)


def installed() -> Any:
    """A patch under which programs load a FakeLibrary, which is its value."""
    library = FakeLibrary()
    return mock.patch("tributary._library.load", return_value=library)


__all__ = ["Callable", "FakeLibrary", "FakeSession", "JobStopped", "installed"]
