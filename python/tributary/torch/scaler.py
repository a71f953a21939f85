"""GradScaler: torch's loss scaling, decided by the job for all ranks alike."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from tributary._errors import Error
from tributary.torch._run.program import program


class GradScaler:
    """Has the methods of ``torch.amp.GradScaler`` that a loop calls, for a job with a loss scale.

    The scale is the job's: the servers divide it out, look for values that are not finite, skip such a round on all
    ranks and let the scale grow and back off. So :meth:`unscale_` and :meth:`update` have nothing to do. Pass
    ``loss_scale="dynamic"`` to :class:`tributary.torch.DistributedOptimizer`; growth and backoff are ``[gate]`` keys of
    its ``job=``.

    Args:
        device: of the loss; only for torch's sake.
        enabled: False: :meth:`scale` and :meth:`step` do nothing of their own.
    """

    def __init__(self, device: str = "cpu", *, enabled: bool = True, **ignored: Any) -> None:
        unknown = set(ignored) - {"init_scale", "growth_factor", "backoff_factor", "growth_interval"}
        if unknown:
            raise TypeError(f"GradScaler has no argument {sorted(unknown)[0]!r}")
        if ignored:
            keys = ", ".join(f'"{key}": {value}' for key, value in ignored.items())
            raise ValueError(
                "the scale is the job's, which is made before the GradScaler: pass "
                f'job={{"gate": {{{keys}}}}} to DistributedOptimizer'
            )
        self._device = device
        self._enabled = enabled

    def get_scale(self) -> float:
        """Returns the factor for the next loss."""
        if not self._enabled:
            return 1.0
        link = program.link
        if link is None:
            raise RuntimeError("GradScaler: make the DistributedOptimizer first, with loss_scale='dynamic'")
        gate = link.gate(link.round)
        if gate is None or gate.loss_scale <= 0:
            raise Error(
                f"job '{link.name}' has no loss scale: pass loss_scale='dynamic' to DistributedOptimizer, or "
                "GradScaler(enabled=False)"
            )
        program.scaled_losses += 1
        return gate.loss_scale

    def scale(self, outputs: torch.Tensor | Iterable[torch.Tensor]) -> Any:
        """A tensor, or an iterable of tensors, times the scale."""
        if not self._enabled:
            return outputs
        factor = self.get_scale()
        if isinstance(outputs, torch.Tensor):
            return outputs * factor
        return type(outputs)(output * factor for output in outputs)  # type: ignore[call-arg]

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Does nothing: the servers unscale. To clip, pass ``max_grad_norm=`` to DistributedOptimizer."""

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        """``optimizer.step()``. A round with values that are not finite changes no parameter."""
        return optimizer.step(*args, **kwargs)

    def update(self, new_scale: float | None = None) -> None:
        """Does nothing: the job has decided.

        Raises:
            ValueError: a new scale is given.
        """
        if new_scale is not None:
            raise ValueError("update(new_scale): the scale is the job's; set gate.init_scale in job=")

    def is_enabled(self) -> bool:
        return self._enabled

    def state_dict(self) -> dict[str, Any]:
        """Only for the looks of it: the scale is kept with the job."""
        return {"scale": self.get_scale()} if self._enabled else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Does nothing: the scale comes with the job."""
