"""DiLoCo: every rank trains by itself for some steps, and then an outer optimizer moves all of them together."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import torch

from tributary._library import CONFIGURED
from tributary.torch._base import complaints
from tributary.torch._model import declare
from tributary.torch._model.copies import copies_of
from tributary.torch._model.parallel import Part
from tributary.torch._run.alike import alike_of
from tributary.torch._run.link import Link, Model
from tributary.torch._run.place import Place
from tributary.torch._run.program import program
from tributary.torch._session.attachment import Attachment
from tributary.torch._steps import sections
from tributary.torch._steps.formula import Value
from tributary.torch._steps.schedulers import Schedulers

_OUTER = ("lr", "momentum", "dampening", "nesterov", "weight_decay")


class DiLoCo:
    """DiLoCo (Douillard et al. 2024) round an unchanged loop.

    .. code-block:: python

        with trib.DiLoCo(model, inner_optimizer, sync_every=50):
            for x, y in loader:
                loss(model(x), y).backward()
                inner_optimizer.step()
                inner_optimizer.zero_grad()

    After each ``sync_every`` steps of the inner optimizer, which is this rank's alone, the ranks' moves are averaged
    and the servers' outer optimizer, SGD, takes their mean as its gradient. Leaving the block synchronises what is
    left.

    Making one attaches to the job, and writes its parameters into the model.

    Args:
        model: or its parameters, or ``named_parameters()``.
        inner_optimizer: any torch optimizer.
        sync_every: inner steps a round.
        outer: SGD's ``lr``, ``momentum``, ``nesterov`` and so on. ``dict(lr=1.0)`` averages the replicas. Default:
            ``[optimizer]`` of ``job=``, else ``dict(lr=0.7, momentum=0.9, nesterov=True)``.
        name, job, push, pull, on_rewind, rounds, attach_timeout: as of :class:`tributary.torch.DistributedOptimizer`.
    """

    def __init__(
        self,
        model: declare.Parameters,
        inner_optimizer: torch.optim.Optimizer,
        *,
        sync_every: int = 50,
        outer: Mapping[str, Any] | None = None,
        name: str | None = None,
        job: sections.JobArgument = None,
        push: str = "fp32",
        pull: str = "fp32",
        on_rewind: str = "warn",
        rounds: int = 0,
        attach_timeout: float | None = None,
    ) -> None:
        complaints.one_of("on_rewind", on_rewind, ("warn", "raise"))
        if sync_every < 1:
            raise ValueError(f"sync_every={sync_every}: must be at least 1")
        unknown = sorted(set(outer or {}) - set(_OUTER))
        if unknown:
            raise ValueError(f"outer has no {unknown[0]!r}: the outer optimizer is SGD, with {', '.join(_OUTER)}")
        if not isinstance(model, torch.nn.Module):
            model = list(model)  # type: ignore[assignment]
        self.inner = inner_optimizer
        self.sync_every = sync_every
        elsewhere = program.jobs.trained
        self._slots = declare.slots_of(model, inner_optimizer, elsewhere=elsewhere)
        self._job = sections.build_local(
            sections.read(job),
            program.free_name(),
            None if outer is None else {key: _number(value) for key, value in outer.items()},
            {
                "job": {**sections.named(name), "mode": "local_sgd"},
                "local": {"steps": sync_every},
                "encoding": sections.encoding(push, pull),
            },
        )
        self._steps = 0  # inner ones since the last round
        self._counted = 0  # of them, with batches that count
        self._handle: torch.utils.hooks.RemovableHandle | None = None
        self._began = time.monotonic_ns()
        self._taken_before = program.loop.samples
        self._link = Link(
            Attachment(
                self._job.name,
                self._job.text,
                Part().declare(self._slots, declare.tensors_of(self._slots, grouped=False)),
                initial=lambda index, memory: self._slots[index].give(memory),
                computes_with=declare.computes_with(self._slots),
                copies=copies_of(self._slots),
                rounds=rounds,
                attach_timeout=attach_timeout,
            ),
            Model(self._slots, lambda index: None, self._push, self._clear),
            program.jobs,
            Place(
                program.loop,
                Schedulers(inner_optimizer),
                declare.buffers_of(model),
                inner_optimizer,
                alike=alike_of(model, self._slots, None, is_part=False, elsewhere=elsewhere),
            ),
            batches=sync_every,
            on_rewind=on_rewind,
        )
        program.open(self._link)

    @property
    def round(self) -> int:
        """The newest round whose parameters the model had."""
        return self._link.round

    def __enter__(self) -> DiLoCo:
        if not hasattr(self.inner, "register_step_post_hook"):
            raise TypeError(f"{type(self.inner).__name__} has no register_step_post_hook(): it is no torch optimizer")
        self._handle = self.inner.register_step_post_hook(self._stepped)
        self._first = self.inner.register_step_pre_hook(self._steps_next)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._handle is not None
        self._handle.remove()
        self._first.remove()
        if kind is None and self._steps > 0 and not self._link.closed:
            self._synchronise()

    def _steps_next(self, *_: Any) -> None:
        if self._steps == 0:
            program.first_gradient(self._link)

    def _stepped(self, *_: Any) -> None:
        self._steps += 1
        self._counted += not program.loop.is_void
        if self._steps >= self.sync_every:
            self._synchronise()

    @torch.no_grad()
    def _synchronise(self) -> None:
        self._link.leaving.check_open()
        if self._link.skips:
            self._link.skip()
        else:
            self._link.round_leaves()
            self._push()
        self._link.wait_pushed()
        blocked = time.monotonic_ns()
        compute_ns = blocked - self._began
        trains = self._link.sends
        done = self._link.complete_round()
        samples = program.loop.samples - self._taken_before or self._steps
        if done:
            self._link.take_all()
        if done and trains:
            self._link.report.round_done(self._link.round, samples, compute_ns, time.monotonic_ns() - blocked)
        self._clear()
        if not done:
            self._link.tell_rewound()

    def _clear(self) -> None:
        """A round begins."""
        self._taken_before = program.loop.samples
        self._steps = self._counted = 0
        self._began = time.monotonic_ns()

    def _push(self) -> None:
        """By how much the steps moved the parameters, before minus after: a gradient for the outer optimizer."""
        weight = min(1, self._counted)
        for slot in reversed(self._slots):
            now = slot.local().to(torch.float32)
            before = self._link.attachment.parameters(slot.index).to(now.device)
            self._link.push(slot.index, before - now if weight else None, 1, weight, CONFIGURED)

    def finish(self) -> None:
        """As :meth:`tributary.torch.DistributedOptimizer.finish`."""
        self._link.leaving.finish()


def _number(value: Any) -> Value:
    return value if isinstance(value, bool) else float(value)
