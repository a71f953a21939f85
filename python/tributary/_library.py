"""The C library ``libtributary.so``: finding and loading it, and :class:`Session`, which is one attach of this process.

ctypes releases the interpreter's lock in calls, so a thread that waits for parameters does not block others.
"""

from __future__ import annotations

import contextlib
import ctypes as c
import enum
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from tributary import _abi
from tributary._errors import Error, Status, error_of

CONFIGURED = -1.0  # as the job has it
ALL_TENSORS = _abi.ALL_TENSORS

# A view of a session's memory: fp32 values in logical order.
Floats = Any  # ctypes.Array[ctypes.c_float]


class Step(enum.IntEnum):
    """The outcome of :meth:`Session.wait` or :meth:`Session.gather`."""

    CONTINUE = 0
    STOP_REQUESTED = 1
    VIEW_STOPPED = 2
    RESTART = 3
    TRAINED = 4  # as VIEW_STOPPED, because a rank finished for all


class Leave(enum.IntEnum):
    """How a rank leaves its job."""

    FINISHED = 0
    STOPPED = 1
    FAILED = 2
    FINISHES_ALL = 3  # for ranks that have not left, too


@dataclass(frozen=True)
class Tensor:
    """A tensor of a job. ``group`` 0 is the job's ``[optimizer]``, k its k-th ``[[groups]]``; ``holders`` are the model
    ranks that have it, ascending, or all if there are none.
    """

    name: str
    shape: tuple[int, ...]
    group: int = 0
    holders: tuple[int, ...] = ()

    @property
    def elements(self) -> int:
        count = 1
        for extent in self.shape:
            count *= extent
        return count


@dataclass
class AttachOptions:
    """Options of an attach; the header describes them at ``tributary_options``.

    Args:
        topology: rank, world size, local rank, local world size and node rank. None: from the environment.
        attach_timeout_ms: 0: from the environment (``TRIBUTARY_ATTACH_TIMEOUT``, seconds), else two minutes.
        device: the CUDA device of which the worker is asked to lend memory; -1: none.
        stops: not 0, set by another thread, ends the attach with :class:`tributary.JobStopped`.
    """

    job: str
    tensors: Sequence[Tensor]
    socket: str | None = None
    topology: tuple[int, int, int, int, int] | None = None
    attach_timeout_ms: int = 0
    gradients_move: bool = False
    device: int = -1
    computes_with: str = ""
    note: Callable[[str], None] | None = None
    recovery: RecoveryHandle | None = None
    model_rank: int = 0
    stops: c.c_int | None = None
    holds_parameters: bool = False  # arrays of parameters can be read after the session, too


class FirstState(enum.IntEnum):
    """Whether what one rank keeps comes to those that have nothing."""

    NONE = 0  # no rank has any
    COMES = 1  # :meth:`Session.kept_of_first` waits for it
    GIVEN = 2  # this rank gives it, before its first :meth:`Session.ready`


@dataclass(frozen=True)
class Kept:
    """State kept with a round.

    Attributes:
        state: bytes; none: nothing is known.
        large: the large part; valid until the session is destroyed.
        whole: else what the first rank keeps belongs to it, too.
    """

    state: bytes
    large: memoryview
    whole: bool


@dataclass(frozen=True)
class View:
    """Where this rank stands in a session's view."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    fresh: bool
    on_device: bool
    resume_round: int
    job: int
    first_state: FirstState


@dataclass(frozen=True)
class Gate:
    """The gate's decision about a round."""

    skipped: bool
    norm: float
    coefficient: float
    loss_scale: float


@dataclass(frozen=True)
class Stats:
    """Totals of this node since the attach."""

    reduce_ns: int
    bytes_pushed: int
    bytes_pulled: int


class RecoveryHandle:
    """State that outlives a job's sessions: with it, the loss of the node's worker loses no round."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self.handle: int | None = library.functions.tributary_recovery_handle_create()

    def retry(self, why: int, reason: str, round_done: bool) -> float:
        """Asks whether a rank that has no session attaches again (``tributary_retry()``).

        Args:
            why: the error's status; ``Status.UNAVAILABLE`` for a view that lost a member.
            reason: the same in words.
            round_done: whether a round was completed since the last call.

        Returns:
            The seconds to wait before.

        Raises:
            Unavailable: a minute and 20 tries have brought no round.
            tributary.Error: attaching again can't help.
        """
        pause = c.c_uint32()
        said = reason.encode(errors="replace")
        self._library.check(self._library.functions.tributary_retry(self.handle, why, said, round_done, c.byref(pause)))
        return pause.value / 1000

    def __del__(self) -> None:
        if self.handle:
            self._library.functions.tributary_recovery_handle_destroy(self.handle)
            self.handle = None


class ParameterMemory:
    """A share in the memory that a session's parameters are in, which is there as long as this object is."""

    def __init__(self, library: Library, session: c.c_void_p) -> None:
        self._library = library
        self.handle: int | None = library.functions.tributary_hold_parameters(session)
        if not self.handle:
            why = library.last_error() or "no reason is known"
            raise Error(f"this process cannot hold a share in the worker's memory: {why}; pass parameters='copy'")

    def __del__(self) -> None:
        if self.handle:
            self._library.functions.tributary_release_parameters(self.handle)
            self.handle = None


class Library:
    """A loaded ``libtributary.so``.

    Args:
        path: of the shared library.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        # The wheel's library has its C++ run time inside. Another build's shares the process's, which is the first that
        # is loaded: the system's, because modules that are imported later may need a newer one than the build brings.
        with contextlib.suppress(OSError):
            c.CDLL("libstdc++.so.6")
        try:
            self.functions: Any = c.CDLL(path, mode=os.RTLD_LOCAL | os.RTLD_NOW)
        except OSError as error:
            raise Error(f"cannot load the library {path}: {error}") from error
        for name, (result, arguments) in _abi.SIGNATURES.items():
            try:
                function = getattr(self.functions, name)
            except AttributeError:
                raise Error(
                    f"{path} has no function {name}: it is not of this release; take the library that was built with it"
                ) from None
            function.restype = result
            function.argtypes = arguments

    def version(self) -> str:
        """The library's release, as ``"0.2.0"``."""
        return str(self.functions.tributary_version().decode())

    def check(self, status: int) -> None:
        """Raises the :class:`tributary.Error` of a status that is not OK."""
        if status == Status.OK:
            return
        raise error_of(status, self.last_error() or self.functions.tributary_status_name(status).decode())

    def last_error(self) -> str:
        """The library's message about this thread's last failed call; empty: none failed."""
        return (self.functions.tributary_last_error() or b"").decode(errors="replace")

    def recovery(self) -> RecoveryHandle:
        """A new :class:`RecoveryHandle`."""
        return RecoveryHandle(self)

    def attach(self, options: AttachOptions) -> Session:
        """Attaches to the node's worker; blocks until all ranks of the job are there.

        Raises:
            tributary.Unavailable: a daemon or a rank did not come; attaching again may help.
            tributary.Error: anything else, in the worker's or the coordinator's words.
        """
        return Session(self, options)


class Session:
    """One attach: from here to :meth:`destroy` memory is shared with the worker. See ``session/session.h``.

    Memory is given as ctypes arrays of ``c_float``, which end with the session; but with ``holds_parameters`` an array
    of parameters can be read as long as a reference to it exists. If the view is ``on_device``, arrays of gradients
    and parameters are memory of the device: only their addresses mean something here.
    """

    def __init__(self, library: Library, options: AttachOptions) -> None:
        self._library = library
        self._functions = library.functions
        self._elements = [tensor.elements for tensor in options.tensors]
        self._arrays: dict[tuple[int, int], Floats] = {}
        self._handle = c.c_void_p()
        self._attach(options)
        self._parameter_memory: ParameterMemory | None = None
        if options.holds_parameters:
            try:
                self._parameter_memory = ParameterMemory(library, self._handle)
            except Error:
                self.destroy()
                raise

    def _attach(self, options: AttachOptions) -> None:
        tensors = (_abi.CTensor * len(options.tensors))()
        kept: list[Any] = []  # until the call is over
        for slot, tensor in zip(tensors, options.tensors):
            shape = (c.c_uint64 * max(1, len(tensor.shape)))(*tensor.shape)
            holders = (c.c_uint32 * max(1, len(tensor.holders)))(*tensor.holders)
            kept += [shape, holders]
            slot.size = c.sizeof(_abi.CTensor)
            slot.name = tensor.name.encode()
            slot.shape = c.cast(shape, c.POINTER(c.c_uint64))
            slot.dimensions = len(tensor.shape)
            slot.group = tensor.group
            slot.holders = c.cast(holders, c.POINTER(c.c_uint32))
            slot.holder_count = len(tensor.holders)

        given = _abi.COptions()
        given.size = c.sizeof(_abi.COptions)
        given.socket = options.socket.encode() if options.socket else None
        given.job = options.job.encode()
        given.tensors = c.cast(tensors, c.POINTER(_abi.CTensor))
        given.tensor_count = len(options.tensors)
        given.from_environment = options.topology is None
        if options.topology is not None:
            given.rank, given.world_size, given.local_rank, given.local_world_size, given.node_rank = options.topology
        given.attach_timeout_ms = options.attach_timeout_ms
        given.gradients_move = options.gradients_move
        given.model_rank = options.model_rank
        given.device = options.device
        given.computes_with = options.computes_with.encode()[:128] if options.computes_with else None
        told = options.note
        if told is not None:
            # Only called in the attach; an object of our own, because ctypes does not keep it.
            note = _abi.NoteCallback(lambda text, _: told(text.decode(errors="replace")))
            given.note = note
        if options.recovery is not None:
            given.recovery = options.recovery.handle
        if options.stops is not None:
            self._stops = options.stops  # as long as the session
            given.stops = c.pointer(options.stops)
        self._library.check(self._functions.tributary_attach(c.byref(given), c.byref(self._handle)))

    def _open(self) -> c.c_void_p:
        if not self._handle:
            raise Error("the session is destroyed: attach again", Status.INVALID_ARGUMENT)
        return self._handle

    def destroy(self) -> None:
        """Ends the session and its memory. Without :meth:`finish` before, the rank counts as failed."""
        handle, self._handle = self._handle, c.c_void_p()
        self._arrays.clear()
        self._parameter_memory = None
        if handle:
            self._functions.tributary_destroy(handle)

    def view(self) -> View:
        view = _abi.CView(size=c.sizeof(_abi.CView))
        self._library.check(self._functions.tributary_get_view(self._open(), c.byref(view)))
        return View(
            view.rank,
            view.world_size,
            view.local_rank,
            view.local_world_size,
            view.node_rank,
            bool(view.fresh),
            bool(view.on_device),
            view.resume_round,
            view.job,
            FirstState(view.first_state),
        )

    def _array(self, tensor: int, address: int | None, what: str) -> Floats:
        if not address:
            raise Error(f"there is no memory for the {what} of tensor {tensor}", Status.INVALID_ARGUMENT)
        # A tensor's gradient moves among the places of a ring, so an address comes again.
        array = self._arrays.get((tensor, address))
        if array is None:
            array = (c.c_float * self._elements[tensor]).from_address(address)
            self._arrays[tensor, address] = array
        return array

    def initial(self, tensor: int) -> Floats | None:
        """Memory for a tensor's initial values, in a fresh view before :meth:`start`. None: another rank gives them."""
        address = self._functions.tributary_initial(self._open(), tensor)
        return self._array(tensor, address, "initial values") if address else None

    def start(self) -> None:
        """Blocks until the parameters of the view's ``resume_round`` are there."""
        self._library.check(self._functions.tributary_start(self._open()))

    def gradient(self, tensor: int) -> Floats:
        """Where the tensor's gradient of its next round is to be written."""
        return self._array(tensor, self._functions.tributary_gradient(self._open(), tensor), "gradient")

    def parameters(self, tensor: int) -> Floats:
        """The tensor's parameters; not to be read between :meth:`ready` and :meth:`wait`, nor written before
        :meth:`destroy`.
        """
        array = self._array(tensor, self._functions.tributary_parameters(self._open(), tensor), "parameters")
        if self._parameter_memory is not None:
            array.memory = self._parameter_memory
        return array

    def keep(self, round: int, state: bytes, large: Sequence[tuple[int, int]] = (), whole: bool = True) -> None:
        """Keeps the state that this rank needs, besides the parameters, to continue after ``round``. Call it before the
        next round's first :meth:`ready`; the last call counts.

        Args:
            large: addresses and sizes, in bytes, of the large part, which is copied.
            whole: False: the process that takes this rank's place needs the first rank's state, too.
        """
        pieces = (_abi.CPiece * len(large))(*(_abi.CPiece(address, size) for address, size in large))
        self._library.check(
            self._functions.tributary_keep_large(self._open(), round, state, len(state), pieces, len(large), whole)
        )

    def wanted_round(self) -> int:
        """The round of the next snapshot, for which states must be whole; 0 until the round is named."""
        return int(self._functions.tributary_wanted_round(self._open()))

    def kept_state(self) -> Kept:
        """Returns the state kept of the view's ``resume_round``. Waits for its large part."""
        return self._kept(self._functions.tributary_get_kept)

    def kept_state_of_first(self) -> Kept:
        """Waits for the state that one rank gives to those without one. The giver must not call it."""
        return self._kept(self._functions.tributary_get_kept_of_first)

    def _kept(self, call: Any) -> Kept:
        kept = _abi.CKeptState(size=c.sizeof(_abi.CKeptState))
        self._library.check(call(self._open(), c.byref(kept)))
        state = c.string_at(kept.state, kept.state_size) if kept.state_size else b""
        large = (c.c_char * kept.large_size).from_address(kept.large) if kept.large_size else b""
        return Kept(state, memoryview(large).cast("B"), bool(kept.whole))

    def last_round(self, round: int) -> None:
        """There is no round after this one. Every rank says so before its first :meth:`ready` of it."""
        self._library.check(self._functions.tributary_last_round(self._open(), round))

    def log(self, round: int, name: str, mean: float, samples: int) -> None:
        """A figure of a round, a mean over ``samples`` of this rank, for the cluster's status and metrics."""
        self._library.check(self._functions.tributary_log(self._open(), round, name.encode(), mean, samples))

    def group_settings(self, group: int, weight_decay: float, momentum: float) -> None:
        """Settings of the group's steps, for each :meth:`ready` from now on; ``CONFIGURED``: as the job has it."""
        self._library.check(self._functions.tributary_group_settings(self._open(), group, weight_decay, momentum))

    def ready(self, tensor: int, weight: int, rate: float = CONFIGURED) -> None:
        """The tensor's gradient, a sum over ``weight`` samples, is final."""
        status = self._functions.tributary_ready(self._open(), tensor, weight, rate)
        if status:
            self._library.check(status)

    def ready_after(self, tensor: int, weight: int, rate: float, stream: int) -> None:
        """The same as soon as what is on the CUDA stream now is done; the session has a device."""
        status = self._functions.tributary_ready_after(self._open(), tensor, weight, rate, stream)
        if status:
            self._library.check(status)

    def wait(self, tensor: int = ALL_TENSORS) -> Step:
        """Blocks until the answer to the last :meth:`ready` of the tensor, or of all, is there."""
        step = c.c_int()
        status = self._functions.tributary_wait(self._open(), tensor, c.byref(step))
        if status:
            self._library.check(status)
        return Step(step.value)

    def gather(self, round: int, index: int, data: bytes) -> list[bytes] | Step:
        """Gives this rank's value to all ranks, and blocks until those of all are there, which it returns by rank. All
        ranks make the same calls.

        Args:
            round: the newest that is complete for the program.
            index: of its calls since that round, from 0. Asked again, a call that was complete has the same values.
            data: at most 64 KiB.

        Returns:
            The values, or a step other than ``CONTINUE``: the view is over, as :meth:`wait` says it.
        """
        values = c.POINTER(_abi.CValue)()
        count = c.c_size_t()
        step = c.c_int()
        self._library.check(
            self._functions.tributary_gather(
                self._open(), round, index, data, len(data), c.byref(values), c.byref(count), c.byref(step)
            )
        )
        if step.value != Step.CONTINUE:
            return Step(step.value)
        return [c.string_at(values[rank].data, values[rank].size) for rank in range(count.value)]

    def gathered(self, round: int, index: int, values: Sequence[bytes]) -> None:
        """Gives the result of a :meth:`gather` in an earlier process of this rank, for ranks that ask again."""
        held = [c.c_char_p(value) for value in values]
        array = (_abi.CValue * len(values))()
        for place, value, address in zip(array, values, held):
            place.data, place.size = c.cast(address, c.c_void_p), len(value)
        self._library.check(self._functions.tributary_gathered(self._open(), round, index, array, len(values)))

    def gate(self, round: int) -> Gate | None:
        """Returns the gate's decision about a round; None if it is not known, or the job has no gate."""
        gate = _abi.CGate(size=c.sizeof(_abi.CGate))
        self._library.check(self._functions.tributary_get_gate(self._open(), round, c.byref(gate)))
        if not gate.known:
            return None
        return Gate(bool(gate.skipped), gate.norm, gate.coefficient, gate.loss_scale)

    def stop_reason(self) -> str:
        """The reason why the view ended; empty if it has not."""
        return (self._functions.tributary_stop_reason(self._open()) or b"").decode(errors="replace")

    def stats(self) -> Stats:
        stats = _abi.CStats(size=c.sizeof(_abi.CStats))
        self._library.check(self._functions.tributary_get_stats(self._open(), c.byref(stats)))
        return Stats(stats.reduce_ns, stats.bytes_pushed, stats.bytes_pulled)

    def finish(self, leave: Leave, message: str = "") -> None:
        """Leaves the job; blocks until the worker has taken note."""
        text = message.encode() if message else None
        self._library.check(self._functions.tributary_finish(self._open(), int(leave), text))

    def saved(self) -> None:
        """After :meth:`finish`: blocks until the state that the job ended with is saved.

        Raises:
            tributary.NotSaved: it is not, and why.
        """
        self._library.check(self._functions.tributary_saved(self._open()))


def find() -> str:
    """The path of the library: ``$TRIBUTARY_LIBRARY``, or ``lib/libtributary.so.1`` of this package.

    Raises:
        tributary.Error: there is none.
    """
    named = os.environ.get("TRIBUTARY_LIBRARY")
    if named:
        if not Path(named).exists():
            raise Error(f"TRIBUTARY_LIBRARY={named}: there is no such file")
        return named
    beside = Path(__file__).resolve().parent / "lib" / "libtributary.so.1"
    if beside.exists():
        return str(beside)
    raise Error(
        f"the library is not at {beside}: install the wheel (make wheel), or name a libtributary.so with "
        "TRIBUTARY_LIBRARY"
    )


_loaded: dict[str, Library] = {}


def load() -> Library:
    """The library that :func:`find` names, loaded once."""
    path = find()
    if path not in _loaded:
        _loaded[path] = Library(path)
    return _loaded[path]
