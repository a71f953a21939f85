"""Python programs in processes that are forked where torch is imported already: ranks begin in a tenth of the time.

``start()`` starts one for a test. ``python()`` begins a launcher's command, as ``sys.executable`` would. A forked
process runs its program as ``python PROGRAM`` would, to the interpreter's end. It ends with the one that asked for it.

This file as a program is the other side: the server, which imports torch, forks a process for each connection and
reports its end there; or the process that a launcher starts, which hands signals on and ends as the forked one does.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys

NUMBER = struct.Struct("i")


class Forked:
    """A process, with those members of Popen that tests use. Thread: the one that started it."""

    def __init__(self, name: str, arguments: list[str], variables: dict[str, str], output: int, error: int) -> None:
        self.returncode: int | None = None
        self._link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # first its number, then how it ended
        self._link.connect(f"\0{name}")
        request = json.dumps({"arguments": [*map(str, arguments)], "variables": variables, "folder": os.getcwd()})
        socket.send_fds(self._link, [request.encode()], [output, error])
        self.pid = NUMBER.unpack(self._link.recv(NUMBER.size))[0]

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
        if self.returncode is None and select.select([self._link], [], [], timeout)[0]:
            told = self._link.recv(NUMBER.size)
            self.returncode = NUMBER.unpack(told)[0] if told else -signal.SIGKILL
            self._link.close()
        return self.returncode


_name = ""  # of the server's socket
_life: socket.socket | None = None  # the server lives as long as its other end


def _server() -> str:
    global _name, _life
    if _life is None:
        _name = f"tributary-forks-{os.getpid()}"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(f"\0{_name}")
        listener.listen(64)
        _life, theirs = socket.socketpair()
        descriptors = [listener.fileno(), theirs.fileno()]
        subprocess.Popen([sys.executable, __file__, "--serve", *map(str, descriptors)], pass_fds=descriptors)
        listener.close()
        theirs.close()
        atexit.register(_life.close)
    return _name


def start(arguments: list[str], variables: dict[str, str], output: int) -> Forked:
    """Starts a program, with its standard output and error in the descriptor `output`."""
    return Forked(_server(), arguments, variables, output, output)


def python() -> list[str]:
    """Returns what to write instead of sys.executable where another program starts ranks."""
    return [sys.executable, "-IS", __file__, _server()]


def _launched(name: str, arguments: list[str]) -> None:
    """Is, for a launcher, the process that runs the program."""
    process = Forked(name, arguments, dict(os.environ), 1, 2)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: process.send_signal(number))
    code = process.wait()
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


def _fork_for(listener: socket.socket, life: socket.socket) -> list[str]:
    """Serves requests. Returns in a forked process, with its arguments; ends the server when the tests have ended."""
    links: dict[int, socket.socket] = {}  # by process
    waker, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken)
    while True:
        ready = select.select([listener, life, waker, *links.values()], [], [])[0]
        if waker in ready:
            os.read(waker, 4096)
            while links:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                with links.pop(pid) as link, contextlib.suppress(OSError):  # nobody asks any more
                    link.send(NUMBER.pack(os.waitstatus_to_exitcode(status)))
        for pid, link in links.items():
            if life in ready or link in ready:
                os.kill(pid, signal.SIGKILL)  # who asked for it is gone
        if life in ready:
            os._exit(0)
        if listener not in ready:
            continue
        link = listener.accept()[0]
        text, descriptors, _, _ = socket.recv_fds(link, 1 << 20, 2)
        if not text:
            link.close()
            continue
        request = json.loads(text)
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for descriptor in (waker, woken):
                os.close(descriptor)
            for other in (listener, life, link, *links.values()):
                other.close()
            for standard, descriptor in enumerate(descriptors, 1):
                os.dup2(descriptor, standard)
            for descriptor in descriptors:
                os.close(descriptor)
            os.environ.clear()
            os.environ.update(request["variables"])
            os.chdir(request["folder"])
            return list(request["arguments"])
        for descriptor in descriptors:
            os.close(descriptor)
        links[pid] = link
        link.send(NUMBER.pack(pid))


if __name__ == "__main__":
    if sys.argv[1] != "--serve":
        _launched(sys.argv[1], sys.argv[2:])
    import gc
    import runpy
    from pathlib import Path

    import numpy.random
    import torch.distributed.fsdp  # without torch._dynamo: the package does something else where that is imported
    import torch.utils.data  # noqa: F401

    gc.freeze()  # forked processes do not go through what is imported, which costs more than their programs
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the tests' Ctrl-C
    listener, life = (socket.socket(fileno=int(word)) for word in sys.argv[2:])
    sys.argv = _fork_for(listener, life)
    numpy.random.seed()  # as a new process; Python's own generator does so by itself
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
