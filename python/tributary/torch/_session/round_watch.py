"""Reports a round that does not complete."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Callable

LOOK_S = 1.0
QUIET_S = 10.0  # so long at least, ...
USUAL_TIMES = 4.0  # ... and so many times as long as usual, is waited before anything is said, ...
LONGEST_SILENCE_S = 300.0  # ... and twice as long each time after that, up to this


@dataclass(frozen=True, eq=False)
class _Wait:
    what: str
    began: float  # by time.monotonic()
    round: int | None = None  # whose parameters


class RoundWatch:
    """Watches a rank that waits for parameters, from a thread of its own: the one that waits is in the library.

    The coordinator knows the reason; the message says where to ask.

    Args:
        say: called by the thread with each message.
        look_s: time between looks, seconds.
        quiet_s: time before the first message, seconds.
    """

    def __init__(self, say: Callable[[str], None], look_s: float = LOOK_S, quiet_s: float = QUIET_S) -> None:
        self._say = say
        self._look_s = look_s
        self._quiet_s = quiet_s
        self._usual: deque[float] = deque(maxlen=8)  # the last waits that ended, seconds
        self._waits: _Wait | None = None  # replaced as a whole
        self._seen: _Wait | None = None  # the last that was looked at, and when something is said of it
        self._due = 0.0
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def waiting(self, round: int) -> Iterator[None]:
        """While the block waits for the parameters of ``round``."""
        began = time.monotonic()
        with self._watching(_Wait(f"parameters of round {round}", began, round)):
            yield
        self._usual.append(time.monotonic() - began)

    @contextlib.contextmanager
    def waiting_for(self, what: str) -> Iterator[None]:
        """While the block waits for something else of other ranks."""
        with self._watching(_Wait(what, time.monotonic())):
            yield

    @contextlib.contextmanager
    def _watching(self, wait: _Wait) -> Iterator[None]:
        if self._thread is None:
            arguments = (weakref.ref(self), self._closed, self._look_s)
            self._thread = threading.Thread(target=_watch, args=arguments, name="tributary-round-watch", daemon=True)
            self._thread.start()
        self._waits = wait
        try:
            yield
        finally:
            self._waits = None

    @property
    def awaited(self) -> int | None:
        """The round whose parameters are being waited for. Any thread."""
        waits = self._waits
        return None if waits is None else waits.round

    def close(self) -> None:
        """Nothing is said any more."""
        self._closed.set()

    def _look(self) -> None:
        waits = self._waits
        if waits is None:
            return
        if waits is not self._seen:
            self._seen = waits
            usual = list(self._usual)
            self._due = waits.began + max(self._quiet_s, USUAL_TIMES * statistics.median(usual) if usual else 0.0)
        now = time.monotonic()
        if now >= self._due:
            self._say(f"no {waits.what} for {now - waits.began:.0f} s; `tributary status` says why")
            self._due = now + min(now - waits.began, LONGEST_SILENCE_S)


def _watch(of: weakref.ref[RoundWatch], closed: threading.Event, look_s: float) -> None:
    while not closed.wait(look_s):
        watch = of()
        if watch is None:
            return
        watch._look()
        del watch
