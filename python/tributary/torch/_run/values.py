"""Values that ranks gather: what a loop asks a process group for, alive after losses as the job is."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from tributary._errors import Error
from tributary.torch._base import plain
from tributary.torch._base.log import logger

if TYPE_CHECKING:
    from tributary.torch._run.link import Link
    from tributary.torch._run.together import Together

LIMIT = 64 << 10  # bytes of a rank's value (common/wire/attach_messages.h: kMaxRankValue)
BEFORE_LOOP = 1 << 31  # is added to the number of a call that comes before the process' first top
REMEMBERED = 64 << 10  # bytes of an iteration's answers that go with the loop's state


class Values:
    """Values that a program's ranks, which all make the same calls, gather. The newest complete round and the call's
    number since then identify a call. A rank that goes through its loop again gets the call's earlier result
    (docs/values.md).

    In a job that continues from a snapshot some ranks may continue from the top after a round, and others from the top
    before it. So results of an iteration's calls are kept with the top after it, for ranks that ask.

    Args:
        jobs: of the program.
    """

    def __init__(self, jobs: Together) -> None:
        self._jobs = jobs
        self._round = 0
        self._number = 0  # of the next call, since that round
        self._before_loop = 0  # calls before the first top
        self._looped = False  # the loop has come to a top in this process
        self._answers: deque[tuple[int, int, list[bytes]]] = deque()  # since the last top
        self._bytes = 0  # of them
        self._known: list[tuple[int, int, list[bytes]]] = []  # of the iteration before the top of continuation
        self._alone = 0  # so many tops must come before other ranks make the same calls again
        self._back = False  # because the job went back
        self._sums: dict[str, tuple[float, float]] = {}  # of what metric() is asked for, and their weights

    # ---- calls

    def gather(self, call: str, value: Any) -> list[Any]:
        """All ranks' values, by rank. Blocks until they are there.

        Args:
            call: that the loop makes, for messages.
            value: as keep() takes it.

        Returns:
            This rank's alone while the loop is in an iteration of no round, because the job went back.

        Raises:
            Rewound: the job goes back, or has done so in this iteration, with ``on_rewind="raise"``.
            Stopped: the job stops.
            tributary.Error: there is no open job, or a rank has made other calls.
            ValueError: another rank makes another call, or the value is too large.
        """
        data = plain.encoded((call, value), call)
        if len(data) > LIMIT:
            raise ValueError(f"{call}: a value of {len(data)} bytes; a rank's value has at most {LIMIT}")
        if self._back:
            self._link().raise_rewound()
        found = None if self._alone else self._gather(data)
        if found is None and self._jobs.open:
            logger.warning(
                "%s: other ranks make no such call, because this iteration is of no round, or of one that other ranks "
                "made: this rank has its own value alone until the loop's top",
                call,
            )
        if found is None:
            return [value]
        values = []
        for rank, given in enumerate(found):
            other, value = plain.decoded(given)
            if other != call:
                raise ValueError(f"this rank calls {call}, and rank {rank} calls {other}: make the same calls on all")
            values.append(value)
        return values

    def _gather(self, data: bytes) -> list[bytes] | None:
        link = self._link()
        if not self._looped:
            found = link.gather(0, BEFORE_LOOP + self._before_loop, data)
            self._before_loop += 1
            return found
        if link.round != self._round:
            self._round, self._number = link.round, 0
        found = link.gather(self._round, self._number, data)
        if found is not None:
            self._remember((self._round, self._number, found))
            self._number += 1
        return found

    def _remember(self, answer: tuple[int, int, list[bytes]]) -> None:
        self._answers.append(answer)
        self._bytes += _size(answer)
        while self._bytes > REMEMBERED:
            self._bytes -= _size(self._answers.popleft())

    def _link(self) -> Link:
        """The job whose ranks they are."""
        for link in self._jobs.open:
            if link.attached:
                return link
        raise Error("only ranks of a job gather values: make the DistributedOptimizer before, and finish() after it")

    # ---- figures

    def log(self, figures: dict[str, float]) -> None:
        """Adds figures to the sums of which metric() takes the mean."""
        weight = figures.get("samples", 1.0)
        for name, value in figures.items():
            if name != "samples":
                total, weights = self._sums.get(name, (0.0, 0.0))
                self._sums[name] = (total + value * weight, weights + weight)

    def metric(self, name: str) -> float:
        """The mean over all ranks of what each has logged since this was asked last; NaN: nothing."""
        given = self.gather(f"metric({name!r})", self._sums.pop(name, (0.0, 0.0)))
        weights = sum(weight for _, weight in given)
        return sum(total for total, _ in given) / weights if weights else float("nan")

    # ---- the loop

    def passes_top(self) -> None:
        self._looped = True
        self._alone = max(0, self._alone - 1)
        self._back = False

    def comes_to_new_top(self) -> None:
        """Its state has been noted."""
        self._answers.clear()
        self._bytes = 0

    def goes_back(self) -> None:
        """The job goes back: the rest of the iteration is of no round."""
        self._alone, self._back = int(self._looped), self._looped

    def goes_alone(self) -> None:
        """The loop goes through a round again that other ranks made."""
        self._alone = 2

    def say_known(self) -> None:
        """Gives the known results to the worker, in the first view of a process that continues."""
        known, self._known = self._known, []
        for round, number, answer in known:
            self._link().attachment.session.gathered(round, number, answer)

    # ---- its state, at a top

    def state_dict(self) -> dict[str, Any]:
        round = self._link().round if self._jobs.open else self._round
        number = self._number if round == self._round and self._looped else 0
        return {"round": round, "number": number, "answers": list(self._answers), "sums": self._sums}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._round, self._number = state["round"], state["number"]
        self.comes_to_new_top()
        self._known = state["answers"]
        self._sums = dict(state["sums"])


def _size(answer: tuple[int, int, list[bytes]]) -> int:
    return sum(len(data) for data in answer[2])
