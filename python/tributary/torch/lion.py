"""Lion for PyTorch, with the formula that the servers have (``kernels/step/lion.h``)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Callable

import torch


class Lion(torch.optim.Optimizer):
    r"""Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", Algorithm 2).

    .. math::
        u = \mathrm{sign}(\beta_1 m + (1 - \beta_1) g), \quad
        p \leftarrow p (1 - \eta \lambda) - \eta u, \quad
        m \leftarrow \beta_2 m + (1 - \beta_2) g

    Args:
        params: parameters, or dicts that define parameter groups.
        lr: learning rate; a tenth of AdamW's is usual.
        betas: of the interpolation that the step follows, and of the momentum.
        weight_decay: decoupled, as AdamW's.
    """

    def __init__(
        self,
        params: Iterable[torch.Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        if lr < 0.0:
            raise ValueError(f"lr={lr}: must be 0 or above")
        if not all(0.0 <= beta < 1.0 for beta in betas):
            raise ValueError(f"betas={betas}: must be in [0, 1)")
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One step. A parameter without gradient stays as it is."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            rate, (beta1, beta2) = float(group["lr"]), group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                m = state["exp_avg"]
                direction = torch.sign(beta1 * m + (1.0 - beta1) * p.grad)
                p.mul_(1.0 - rate * group["weight_decay"]).sub_(direction, alpha=rate)
                m.mul_(beta2).add_(p.grad, alpha=1.0 - beta2)
        return loss
