"""SIGINT and SIGTERM as a request to stop at the end of the round."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

# A second signal within this time is the same wish: launchers and terminals both send one.
SAME_WISH_S = 1.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignal:
    """While armed, the first signal is only noted; one that comes a second or more later ends the process at once.

    Handlers of Python run between instructions of the main thread, so not while it waits in the library. A thread of
    its own sees signals come (``signal.set_wakeup_fd``) and ends the process where the main thread cannot.
    """

    def __init__(self) -> None:
        self.requested: str | None = None  # the signal's name
        self._at = 0.0
        self._before: dict[int, Any] = {}
        self._ends: tuple[socket.socket, socket.socket] | None = None

    def arm(self) -> None:
        """Takes the two signals over. Does nothing outside the main thread, where Python allows none."""
        if self._before or threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            self._before[number] = signal.signal(number, self._note)
        self._watch()

    def disarm(self) -> None:
        """The two signals do what they did before."""
        if not self._before or threading.current_thread() is not threading.main_thread():
            return
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._before.clear()
        if self._ends is not None:
            signal.set_wakeup_fd(-1)
            self._ends[1].close()  # the thread ends
            self._ends = None

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """While there is no round to complete (attaching), the signals end the process."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, signal.SIG_DFL) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def _note(self, number: int, frame: object) -> None:
        if self.requested is None:
            self.requested = signal.Signals(number).name
            self._at = time.monotonic()
        elif time.monotonic() > self._at + SAME_WISH_S:
            os._exit(128 + number)

    def _watch(self) -> None:
        read, write = socket.socketpair()
        write.setblocking(False)
        before = signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
        if before != -1:  # somebody else (asyncio) watches
            signal.set_wakeup_fd(before)
            read.close()
            write.close()
            return
        self._ends = (read, write)
        threading.Thread(target=_end_on_second, args=(read,), name="tributary-stop", daemon=True).start()


def _end_on_second(read: socket.socket) -> None:
    first: float | None = None
    with read:
        while True:
            got = read.recv(1)
            if not got:
                return
            if got[0] not in _SIGNALS:
                continue
            now = time.monotonic()
            if first is None:
                first = now
            elif now > first + SAME_WISH_S:
                os._exit(128 + got[0])
