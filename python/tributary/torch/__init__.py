"""Tributary for PyTorch: a model of your own, trained by servers and nodes.

.. code-block:: python

    import tributary.torch as trib

    opt = trib.DistributedOptimizer(model, torch.optim.AdamW(model.parameters(), lr=3e-4), max_grad_norm=1.0)
    sampler = trib.DistributedSampler(dataset, seed=1)
    for x, y in DataLoader(dataset, batch_size=32, sampler=sampler):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        opt.zero_grad()

``tributary run`` starts it with daemons and ranks on one machine, ``torchrun`` next to worker daemons on several.
``docs/torch.md`` describes the engine, and the differences from DistributedDataParallel.
"""

from importlib import import_module as _import_module
from typing import Any as _Any

from tributary.torch._base import needs as _needs

try:
    import torch as _torch
except ImportError as error:
    missing = error.name == "torch"  # the message says it all, then
    raise ImportError(_needs.without_torch(error), name=error.name) from (None if missing else error)
else:
    _needs.check(_torch)

from tributary.torch._base import log as _log
from tributary.torch._base.exceptions import Rewound, Stopped
from tributary.torch._loaders import batches as _batches  # noqa: F401  from now on DataLoaders count batches
from tributary.torch._run.program import epochs, finish, init, keep, log, rank, rounds, stop, world_size
from tributary.torch._steps.optimizer_state import full_state_dict
from tributary.torch.checkpoints import load_checkpoint, save_checkpoint
from tributary.torch.collectives import all_reduce, barrier, broadcast, is_main, metric
from tributary.torch.lion import Lion
from tributary.torch.local_sgd import DiLoCo
from tributary.torch.optimizer import DistributedOptimizer
from tributary.torch.sampler import DistributedSampler
from tributary.torch.scaler import GradScaler
from tributary.torch.stream import batches

_log.show_by_default()

_FRAMEWORKS = ("accelerate", "hf", "lightning")


def __getattr__(name: str) -> _Any:
    """Modules for frameworks, which are imported only when they are named: ``tributary.torch.hf``."""
    if name in _FRAMEWORKS:
        return _import_module(f"tributary.torch.{name}")
    raise AttributeError(f"module 'tributary.torch' has no attribute {name!r}")


__all__ = [
    "DiLoCo",
    "DistributedOptimizer",
    "DistributedSampler",
    "GradScaler",
    "Lion",
    "Rewound",
    "Stopped",
    "all_reduce",
    "barrier",
    "batches",
    "broadcast",
    "epochs",
    "finish",
    "full_state_dict",
    "init",
    "is_main",
    "keep",
    "load_checkpoint",
    "log",
    "metric",
    "rank",
    "rounds",
    "save_checkpoint",
    "stop",
    "world_size",
]
