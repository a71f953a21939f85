"""Ranks that have a process group of torch's: they start again together, and stop after the same round."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from datetime import timedelta
from typing import Any, Callable

import torch

_FOR_EVER = timedelta(days=3650)
_LOOK_S = 0.05  # how often a rank that waits for others' words looks whether its view is over
_LEAVING_S = 5.0  # how long a rank that is done waits for its neighbours to say that they are, too


class Peers:
    """Ranks of the process group, as this one sees them.

    No process group outlives one of its ranks, and no process joins it later. So the others end, too, and the launcher
    starts all of them again.

    Args:
        group: on Gloo, of ranks that stop together. None: all.
    """

    def __init__(self, group: Any = None) -> None:
        self._all = _group_of_all()
        self._group = self._all if group is None else group
        self._watchers: dict[int, threading.Thread] = {}
        self._agreed = -1  # the newest round after which no rank stops
        self._question: _Question | None = None  # that is still to be answered

    def least(self, number: int) -> int:
        """Returns the least number that any rank gives. All call it together."""
        return -_Question(-number, self._all).answer()

    def watch(self, gone: Callable[[str], None]) -> None:
        """Watches the neighbours: a receive without a send ends when the process at the other end does. Neighbours that
        end because of it are watched by theirs.
        """
        world, rank = self._all.size(), self._all.rank()

        def wait(peer: int) -> None:
            try:
                self._all.recv([torch.zeros(1)], peer, 0).wait()
            except RuntimeError:
                gone(f"rank {peer} has ended")

        for peer in {(rank - 1) % world, (rank + 1) % world} - {rank}:
            thread = threading.Thread(target=wait, args=(peer,), name=f"watches rank {peer}", daemon=True)
            thread.start()
            self._watchers[peer] = thread

    def leave(self) -> None:
        """Training has ended well on all ranks: this one's end is no loss."""
        for peer in self._watchers:
            with contextlib.suppress(RuntimeError):  # it has ended already
                self._all.send([torch.zeros(1)], peer, 0).wait()
        until = time.monotonic() + _LEAVING_S
        for thread in self._watchers.values():
            thread.join(max(0.0, until - time.monotonic()))

    @property
    def watches(self) -> bool:
        """Whether a neighbour is still waited for, in a thread that no interpreter may be torn down under."""
        return any(thread.is_alive() for thread in self._watchers.values())

    def agree(self, round: int, stops: bool, over: Callable[[], bool]) -> bool | None:
        """All ranks of the group ask once about each round, in order, also if it is done again: then the answer is
        known, or is still to come. So ranks that ask and ranks that attach again never wait for each other.
        """
        if round <= self._agreed:
            return False
        if self._question is None:
            self._question = _Question(int(stops), self._group)
        while not self._question.answered(_LOOK_S):
            if over():
                return None
        answer, self._question = bool(self._question.answer()), None
        self._agreed = round
        return answer


def _group_of_all() -> Any:
    """A group on Gloo, with no timeout of the program's, which ``destroy_process_group()`` does not touch. torchrun
    gives restarted processes the store of those before them: under a name of its own no process finds their addresses
    there.
    """
    if torch.distributed.get_backend() != "gloo":  # the backend that has the name may have no device yet
        return torch.distributed.new_group(backend="gloo", timeout=_FOR_EVER)
    name = [uuid.uuid4().hex]
    torch.distributed.broadcast_object_list(name, src=0)
    default = torch.distributed.distributed_c10d._get_default_store()
    store = torch.distributed.PrefixStore(f"tributary/{name[0]}", default)
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    return torch.distributed.ProcessGroupGloo(store, rank, world, _FOR_EVER)


class _Question:
    """Asks for the largest number that a rank of a group says."""

    def __init__(self, says: int, group: Any) -> None:
        self._number = torch.tensor(says)
        self._done = threading.Event()
        options = torch.distributed.AllreduceOptions()
        options.reduceOp = torch.distributed.ReduceOp.MAX
        self._work = group.allreduce([self._number], options)
        self._work.get_future().add_done_callback(lambda _: self._done.set())

    def answered(self, within: float) -> bool:
        """Waits so long, seconds."""
        return self._done.wait(within)

    def answer(self) -> int:
        self._work.wait()  # raises what went wrong
        return int(self._number)
