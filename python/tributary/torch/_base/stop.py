"""SIGINT and SIGTERM as a request to stop at the end of the round."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any, Callable

# A second signal within this time is the same wish: launchers and terminals both send one.
SAME_WISH_S = 1.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def let_loaders_end() -> None:
    """Ends a DataLoader's handler, which raises wherever the main thread is when a process that loads data has died.

    From now on the loop needs no such process; if it does, the loader looks after its processes itself, every 5 s.
    """
    handler = signal.getsignal(signal.SIGCHLD)
    torchs = getattr(handler, "__module__", None) == "torch.utils.data._utils.signal_handling"
    if torchs and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # SIG_DFL: Python complains if one has just come


class StopSignal:
    """While armed, the first signal is only noted, and answered by those who :meth:`listen`; one that comes a second or
    more later ends the process at once.

    Handlers of Python run between instructions of the main thread, so not while it waits in the library. A thread of
    its own sees signals come (``signal.set_wakeup_fd``) and does at once what the main thread cannot: it answers, ends
    an attach, and ends the process.

    Attributes:
        requested: the first signal's name.
        flag: 1 once there is one, for the library to read while it attaches.
    """

    def __init__(self) -> None:
        self.requested: str | None = None
        self.flag = ctypes.c_int(0)
        self._at = 0.0
        self._answered = False
        self._before: dict[int, Any] = {}
        self._ends: tuple[socket.socket, socket.socket] | None = None
        self._listeners: list[Callable[[str], None]] = []

    def listen(self, answer: Callable[[str], None]) -> None:
        """Calls ``answer`` with the first signal's name when it comes, in a thread of its own."""
        self._listeners.append(answer)

    def forget(self, answer: Callable[[str], None]) -> None:
        """Removes a listener. Without listeners signals act as before, but not after one came: its echoes would hit a
        program that ends because of it.
        """
        if answer in self._listeners:
            self._listeners.remove(answer)
        if not self._listeners and self.requested is None:
            self.disarm()

    def arm(self) -> bool:
        """Takes the two signals over; returns whether this call did. Outside the main thread, where Python allows no
        handler, it does not. A request to earlier jobs, which have ended, does not stop the next one.
        """
        if not self._listeners:
            self.requested = None
            self.flag.value = 0
            self._answered = False
        if self._before or threading.current_thread() is not threading.main_thread():
            return False
        for number in _SIGNALS:
            self._before[number] = signal.signal(number, self._note)
        self._watch()
        return True

    def disarm(self) -> None:
        """The two signals do what they did before."""
        if threading.current_thread() is threading.main_thread():
            self._give_back()

    def comes(self) -> bool:
        """Whether the signal is there, or will be in a moment: a sender to many processes may signal this one last."""
        end = time.monotonic() + SAME_WISH_S
        while self.requested is None and self._before and time.monotonic() < end:
            time.sleep(0.01)
        return self.requested is not None

    def forked(self) -> None:
        """To be called in a forked process: what it is told is not this job's. The thread that sees signals is not
        there.
        """
        self._listeners.clear()
        ends = self._ends
        self._give_back()
        if ends is not None:
            ends[0].close()

    def _give_back(self) -> None:
        if not self._before:
            return
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._before.clear()
        if self._ends is not None:
            signal.set_wakeup_fd(-1)
            self._ends[1].close()  # the thread ends
            self._ends = None

    @contextlib.contextmanager
    def attaching(self) -> Iterator[None]:
        """While the main thread waits in the library for others to be there. A signal ends that (``flag``); where no
        thread sees signals come, it ends the process.
        """
        if self._ends is not None or threading.current_thread() is not threading.main_thread():
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
            self._take(number)
        elif self._ends is None and time.monotonic() > self._at + SAME_WISH_S:
            os._exit(128 + number)

    def _take(self, number: int) -> None:
        self._at = time.monotonic()
        self.flag.value = 1
        self.requested = signal.Signals(number).name

    def _watch(self) -> None:
        read, write = socket.socketpair()
        write.setblocking(False)
        before = signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
        if before != -1:  # another listener (asyncio) watches
            signal.set_wakeup_fd(before)
            read.close()
            write.close()
            return
        self._ends = (read, write)
        threading.Thread(target=self._see, args=(read,), name="tributary-stop", daemon=True).start()

    def _see(self, read: socket.socket) -> None:
        """Runs in the thread. The main thread's handler may run much later than a signal comes."""
        with read:
            while True:
                got = read.recv(1)
                if not got or self._ends is None or self._ends[0] is not read:  # disarmed
                    return
                if got[0] not in _SIGNALS:
                    continue
                if not self._answered:
                    self._answered = True
                    if self.requested is None:
                        self._take(got[0])
                    for answer in tuple(self._listeners):
                        answer(signal.Signals(got[0]).name)
                elif time.monotonic() > self._at + SAME_WISH_S:
                    os._exit(128 + got[0])
