"""Python programs in processes that are forked where torch is imported already: ranks begin in a tenth of the time.

``start()`` is the tests' side. The other side is this file as a program: it imports torch, forks a process a request,
and reports each one's end. A forked process runs its program as ``python PROGRAM`` would, to the interpreter's end.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

STATUS = struct.Struct("i")


class Forked:
    """A process, with those members of Popen that tests use. Thread: the one that started it."""

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status  # pipe, with one number when the process has ended

    def __del__(self) -> None:
        os.close(self._status)

    def poll(self) -> int | None:
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end. subprocess.TimeoutExpired: there is none yet."""
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(["forked", str(self.pid)], timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            told = os.read(self._status, STATUS.size)
            self.returncode = STATUS.unpack(told)[0] if told else -signal.SIGKILL
        return self.returncode


_link: socket.socket | None = None


def start(arguments: list[str], variables: dict[str, str], output: int) -> Forked:
    """Starts a program, with its standard output and error in the descriptor `output`."""
    global _link
    if _link is None:
        _link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        subprocess.Popen([sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()])
        theirs.close()
        atexit.register(_link.close)
    reader, writer = os.pipe()
    request = json.dumps({"arguments": [*map(str, arguments)], "variables": variables, "folder": os.getcwd()})
    socket.send_fds(_link, [request.encode()], [output, writer])
    os.close(writer)
    return Forked(json.loads(_link.recv(64)), reader)


def _fork_for(link: socket.socket) -> list[str]:
    """Serves requests. Returns in a forked process, with its arguments; ends the server when the tests have ended."""
    ends: dict[int, int] = {}  # pipes for statuses, by process
    waker, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken)
    while True:
        ready = select.select([link, waker], [], [])[0]
        if waker in ready:
            os.read(waker, 4096)
            while ends:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                os.write(ends[pid], STATUS.pack(os.waitstatus_to_exitcode(status)))
                os.close(ends.pop(pid))
        if link not in ready:
            continue
        text, descriptors, _, _ = socket.recv_fds(link, 1 << 20, 2)
        if not text:
            os._exit(0)
        request = json.loads(text)
        output, end = descriptors
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for descriptor in (waker, woken, end, *ends.values()):
                os.close(descriptor)
            link.close()
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.close(output)
            os.environ.clear()
            os.environ.update(request["variables"])
            os.chdir(request["folder"])
            return list(request["arguments"])
        os.close(output)
        ends[pid] = end
        link.send(json.dumps(pid).encode())


if __name__ == "__main__":
    import numpy
    import torch  # noqa: F401

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the tests' Ctrl-C
    sys.argv = _fork_for(socket.socket(fileno=int(sys.argv[1])))
    numpy.random.seed()  # as a new process; Python's own generator does so by itself
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
