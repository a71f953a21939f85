"""Needs of Accelerate, Transformers and Lightning alike."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler

from tributary.torch.optimizer import DistributedOptimizer
from tributary.torch.sampler import DistributedSampler

_KEPT = (
    "dataset",
    "batch_size",
    "num_workers",
    "collate_fn",
    "pin_memory",
    "drop_last",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
)


def sampler_of(loader: Any) -> DistributedSampler | None:
    """A loader's sampler, if it deals the data out to the job's ranks."""
    sampler = getattr(loader, "sampler", None)
    return sampler if isinstance(sampler, DistributedSampler) else None


def dealt(loader: Any, seed: int) -> Any:
    """Returns a loader that shuffles all of a data set with a DistributedSampler instead; any other loader as it is."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset) or loader.batch_size is None:
        return loader
    sampler: Any = loader.sampler
    if not isinstance(sampler, RandomSampler) or sampler.replacement or sampler.num_samples != len(loader.dataset):
        return loader
    return with_sampler(loader, DistributedSampler(loader.dataset, seed=seed, batch_size=loader.batch_size))


def with_sampler(loader: Any, sampler: Any) -> Any:
    """The same loader, of another sampler's samples."""
    return type(loader)(**{name: getattr(loader, name) for name in _KEPT}, sampler=sampler)


def distributed(model: torch.nn.Module, optimizer: Any, options: dict[str, Any]) -> DistributedOptimizer:
    """Attaches to the job. A scheduler of the optimizer would warn that it is not stepped: the servers do that."""
    optimizer._opt_called = True
    return DistributedOptimizer(model, optimizer, **options)


def counts_itself(sampler: DistributedSampler) -> None:
    """A framework counts epochs from 0 in each process, and says so. The sampler knows the job's epoch."""
    sampler.set_epoch = lambda epoch: None  # type: ignore[method-assign]


def norm_of(optimizer: DistributedOptimizer) -> float:
    """Norm of the newest round's mean gradient, before it was clipped. NaN: the job measures none."""
    norm = optimizer.grad_norm
    return math.nan if norm is None else norm


def holds(optimizer: torch.optim.Optimizer, parameters: Any) -> bool:
    """Whether it has one of the parameters."""
    mine = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return any(id(parameter) in mine for parameter in parameters)
