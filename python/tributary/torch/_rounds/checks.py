"""Mistakes of a loop that lose gradients or parameters, as step() sees them."""

from __future__ import annotations

import torch

from tributary.torch._base import complaints
from tributary.torch._base.log import listed, logger
from tributary.torch._model import declare
from tributary.torch._model.slots import Slot
from tributary.torch._run.program import program, replicas
from tributary.torch._steps.formula import MEAN, Formula, has_steps
from tributary.torch._steps.sections import Job


def who_steps(model: declare.Parameters, optimizer: torch.optim.Optimizer, formula: Formula, steps_here: bool) -> None:
    """Before the first round: says what is not as with the optimizer alone.

    Raises:
        ValueError: the optimizer has state that servers would have to have, or hooks that would not be called.
    """
    if not steps_here:
        if complaints.hooks_of_steps(optimizer):
            raise ValueError(complaints.hooks_without_steps(optimizer))
        if has_steps(optimizer):
            raise ValueError(
                f"the {type(optimizer).__name__} has made steps already, whose state the servers do not have: wrap "
                "it before its first step, or pass step_on='trainers'"
            )
        optimizer.state.clear()  # the servers have it
        return
    if formula.why:
        logger.info("%s: steps on the trainers, with the servers' mean gradient", formula.why)
    if sparse := declare.sparse_layers(model):
        what = "the gradients of %s are sparse, but the mean over ranks is dense: %s gets dense ones"
        logger.warning(what, listed(sparse), type(optimizer).__name__)


class Checks:
    """The checks of one job.

    Args:
        optimizer: whose groups are to have the same parameters.
        accumulate: backward passes a round.
        overlap: as the optimizer's.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, slots: list[Slot], job: Job, accumulate: int, overlap: str
    ) -> None:
        self._optimizer = optimizer
        self._hooks = complaints.hooks_of_steps(optimizer)
        self._groups = groups = optimizer.param_groups
        self._slots = slots
        self._job = job
        self._steps_here = job.optimizer == MEAN
        self._accumulate = accumulate
        self._overlap = overlap
        self._count = sum(len(group["params"]) for group in groups)
        self._frozen = [p for group in groups for p in group["params"] if not p.requires_grad]
        self._scaled_before = 0  # losses, of all jobs
        self._warned: set[str] = set()

    def round_begins(self) -> None:
        self._scaled_before = program.scaled_losses

    @staticmethod
    def check_capture(slot: Slot) -> None:
        """In backward.

        Raises:
            RuntimeError: a graph is being captured.
        """
        if slot.parameter.is_cuda and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(complaints.CAPTURED)

    def check(self, round: int) -> None:
        """Before the round is complete.

        Raises:
            RuntimeError: something would be lost; the message names the cure.
        """
        passes = max(slot.passes for slot in self._slots)
        if 0 < passes < self._accumulate:
            self.warn_once("short", complaints.short_round(round, passes, self._accumulate))
        if sum(len(group["params"]) for group in self._groups) != self._count:
            what = "parameters were added to the optimizer's groups"
            raise RuntimeError(complaints.LAYOUT_IS_FIXED.format(what=what))
        for parameter in self._frozen:
            if parameter.requires_grad and parameter.grad is not None:
                what = f"a frozen parameter of shape {tuple(parameter.shape)} was unfrozen"
                raise RuntimeError(complaints.LAYOUT_IS_FIXED.format(what=what))
        if complaints.hooks_of_steps(self._optimizer) > self._hooks:
            late = complaints.hooks_came_late if self._steps_here else complaints.hooks_without_steps
            raise RuntimeError(late(self._optimizer))
        if passes and self._job.loss_scale and program.scaled_losses == self._scaled_before:
            self._no_loss_was_scaled(round)
        for slot in self._slots:
            if slot.sent and slot.gradient_changed():
                raise RuntimeError(complaints.gradient_changed(slot.name, round))
            if not slot.sent and self._overlap == "step" and replicas() > 1 and slot.gradient_rewritten():
                self.warn_once("rewritten", complaints.gradient_rewritten(slot.name, round))
            if not self._steps_here and slot.written():
                raise RuntimeError(complaints.parameter_written(slot.name))

    def _no_loss_was_scaled(self, round: int) -> None:
        message = complaints.no_scaled_loss(self._job.name, self._job.loss_scale, round)
        if self._job.loss_scale == "dynamic":
            raise RuntimeError(message)
        self.warn_once("scale", message)  # the program may multiply by a constant itself

    def warn_once(self, what: str, text: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            logger.warning("%s", text)
