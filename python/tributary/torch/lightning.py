"""A Lightning strategy whose gradients go to servers (docs/from-lightning.md).

.. code-block:: python

    from tributary.torch.lightning import TributaryStrategy

    trainer = Trainer(strategy=TributaryStrategy(), max_epochs=3, accumulate_grad_batches=2, gradient_clip_val=1.0)
    trainer.fit(module, loader)
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from typing import Any, NoReturn

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.plugins.environments import ClusterEnvironment
from lightning.pytorch.strategies import ParallelStrategy
from lightning.pytorch.trainer import call
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_only
from torch.utils.data import DataLoader, SequentialSampler
from torch.utils.data.distributed import DistributedSampler as SplitSampler

from tributary.torch import collectives
from tributary.torch._base import launch, plain
from tributary.torch._base.log import logger
from tributary.torch._loaders import frameworks
from tributary.torch._run.program import keep, of_environment, program, rank, world_size
from tributary.torch.optimizer import DistributedOptimizer

PART = 4096  # elements of a value that goes in one call


class _Environment(ClusterEnvironment):
    """``tributary run``, torchrun and their like have started this process, and say which rank it is."""

    creates_processes_externally = True
    main_address = "127.0.0.1"  # unused
    main_port = 0

    @staticmethod
    def detect() -> bool:
        return launch.topology_of_environment() is None

    def world_size(self) -> int:
        return world_size()

    def global_rank(self) -> int:
        return rank()

    def local_rank(self) -> int:
        return of_environment("LOCAL_RANK", 0)

    def node_rank(self) -> int:
        return of_environment("GROUP_RANK", 0)

    def set_world_size(self, size: int) -> None:
        """The launcher has said it."""

    def set_global_rank(self, rank: int) -> None:
        """The launcher has said it."""


class _Loops:
    """Where the Trainer's loops are, and the state of its callbacks, as what is kept with each round."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._left_out: set[str] = set()

    def state_dict(self) -> dict[str, Any]:
        loops = self._trainer.fit_loop.state_dict()
        # A loop that continues from a checkpoint counts the batch whose end the checkpoint was made at.
        loops["epoch_loop.state_dict"]["_batches_that_stepped"] -= 1
        return {"loops": loops, "callbacks": self._callbacks()}

    def _callbacks(self) -> dict[str, Any]:
        states = {}
        for name, state in call._call_callbacks_state_dict(self._trainer).items():
            try:
                plain.encoded(state, f"the state of {name}")
            except plain.NotPlain as error:
                if name not in self._left_out:
                    logger.warning("%s, which cannot be kept: in a process that goes on it begins anew", error)
                self._left_out.add(name)
            else:
                states[name] = state
        return states

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._trainer.fit_loop.load_state_dict(state["loops"])
        call._call_callbacks_load_state_dict(self._trainer, {"callbacks": state["callbacks"]})


class TributaryStrategy(ParallelStrategy):
    """Puts a :class:`tributary.torch.DistributedOptimizer` round the module's optimizer.

    The Trainer's own arguments say how gradients are accumulated and clipped (``gradient_clip_val``: of the mean
    gradient, on the servers), and the precision. Loaders that shuffle are dealt out by a
    :class:`tributary.torch.DistributedSampler`; others are split as DistributedDataParallel's are. Figures logged with
    ``sync_dist=True``, and metrics of torchmetrics, go over the job. There is no process group: a lost rank is started
    again alone.

    Args:
        options: of the ``DistributedOptimizer``, as ``push="bf16"`` and ``name="train"``.
    """

    strategy_name = "tributary"
    optimizers: Any

    def __init__(self, **options: Any) -> None:
        super().__init__(cluster_environment=_Environment())
        if options.get("accumulate", 1) != 1:
            raise ValueError("TributaryStrategy(accumulate=...): give accumulate_grad_batches= to the Trainer")
        self._job_options = options
        self._job: DistributedOptimizer | None = None
        self._deals = False  # the Trainer has use_distributed_sampler=True

    # ---- this rank

    is_distributed = True

    @property
    def root_device(self) -> torch.device:
        name = type(self.accelerator).__name__ if self.accelerator is not None else ""
        if name == "CUDAAccelerator":
            return torch.device("cuda", self.local_rank % torch.cuda.device_count())
        return torch.device("cpu")

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        return {"num_replicas": self.world_size, "rank": self.global_rank}

    def setup_environment(self) -> None:
        rank_zero_only.rank = self.global_rank
        super().setup_environment()

    def model_to_device(self) -> None:
        assert self.model is not None
        self.model.to(self.root_device)

    # ---- what it trains

    def setup(self, trainer: Trainer) -> None:
        if self.precision_plugin.precision == "16-mixed":
            raise ValueError(
                "precision='16-mixed': its GradScaler decides on each rank alone, whether a step is made. Use "
                "'bf16-mixed'; or a loop of your own with tributary.torch.GradScaler"
            )
        if trainer.gradient_clip_val and str(trainer.gradient_clip_algorithm or "norm").rpartition(".")[2] != "norm":
            raise ValueError(
                "gradient_clip_algorithm='value': gradients leave during the backward pass, and servers clip the norm "
                "of their mean; leave it out, or say 'norm'"
            )
        self.precision_plugin.clip_gradients = self._clip
        connector = trainer._accelerator_connector
        self._deals = self._deals or connector.use_distributed_sampler
        connector.use_distributed_sampler = False  # process_dataloader() does it
        super().setup(trainer)
        self._gather_metrics()

    def setup_optimizers(self, trainer: Trainer) -> None:
        """Attaches to the job, and continues the Trainer's loops where the job is.

        Raises:
            ValueError: there is not one optimizer; the message names the way out.
        """
        super().setup_optimizers(trainer)
        if len(self.optimizers) != 1:
            raise ValueError(
                f"configure_optimizers() gives {len(self.optimizers)} optimizers, and this strategy trains one: use "
                "one with parameter groups; for a GAN write the loop yourself, with a DistributedOptimizer for each net"
            )
        (optimizer,) = self.optimizers
        options = {"max_grad_norm": trainer.gradient_clip_val or None, "on_rewind": "raise", **self._job_options}
        assert self.lightning_module is not None
        self._job = frameworks.distributed(self.lightning_module, optimizer, options)
        self.optimizers = [self._job]
        program.loop.told = True  # the Trainer begins in the epoch that is open
        keep(trainer=_Loops(trainer))

    def process_dataloader(self, dataloader: Any) -> Any:
        assert self.lightning_module is not None
        if self._deals:
            dataloader = frameworks.dealt(dataloader, seed=0)
        if (sampler := frameworks.sampler_of(dataloader)) is not None:
            frameworks.counts_itself(sampler)
            return dataloader
        splits = self._deals and self.lightning_module.trainer.state.fn != TrainerFn.PREDICTING
        if splits and isinstance(dataloader, DataLoader) and type(dataloader.sampler) is SequentialSampler:
            split = SplitSampler(dataloader.dataset, **self.distributed_sampler_kwargs, shuffle=False)
            return frameworks.with_sampler(dataloader, split)
        return dataloader

    @contextlib.contextmanager
    def block_backward_sync(self) -> Generator[None, None, None]:
        """Backward passes inside only add to the round."""
        assert self._job is not None
        with self._job.no_sync():
            yield

    def _clip(self, optimizer: Any, clip_val: Any = 0.0, gradient_clip_algorithm: Any = None) -> None:
        """The servers do it."""
        trainer = self.lightning_module.trainer if self.lightning_module is not None else None
        has = trainer.gradient_clip_val if trainer is not None else None
        if clip_val and clip_val != has:
            raise ValueError(
                f"clip_gradients({clip_val}): servers clip the mean gradient by the Trainer's gradient_clip_val={has}; "
                "say it there"
            )

    @property
    def grad_norm(self) -> float:
        """The norm of the newest round's mean gradient before clipping; NaN without ``gradient_clip_val``."""
        assert self._job is not None
        return frameworks.norm_of(self._job)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> NoReturn:
        """Raises ValueError: the same command continues where the job is."""
        raise ValueError(
            "fit(ckpt_path=...): parameters, optimizer, schedulers and the place in the data come with the job, which "
            "goes on by itself. To begin with a checkpoint's weights, load them before fit() "
            "(load_from_checkpoint), and leave ckpt_path out"
        )

    # ---- values of all ranks

    @property
    def _joined(self) -> bool:
        """Callbacks ask before there is a job; each rank has its own answer then."""
        return self._job is not None and bool(program.jobs.open)

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Over :func:`tributary.torch.all_reduce`: of tensors a mean, sum, largest or smallest."""
        if not self._joined or not isinstance(tensor, torch.Tensor):
            return tensor
        op = str(reduce_op).rpartition(".")[2].lower() if reduce_op is not None else "mean"
        op = {"avg": "mean", "redoptype.sum": "sum"}.get(op, op)
        if op == "mean" and not tensor.is_floating_point():
            tensor = tensor.float()
        sign = -1 if op == "min" else 1
        parts = (sign * tensor).reshape(-1).split(PART)
        reduced = [collectives.all_reduce(part, "max" if op == "min" else op) for part in parts]
        return sign * torch.cat(reduced).reshape(tensor.shape) if reduced else tensor

    def barrier(self, name: str | None = None) -> None:
        if self._joined:
            collectives.barrier()

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        return collectives.broadcast(obj, src) if self._joined else obj

    def all_gather(self, tensor: torch.Tensor, group: Any = None, sync_grads: bool = False) -> torch.Tensor:
        """Gathers tensors of equal shapes, at most 64 KiB a rank, into [ranks, ...]."""
        if sync_grads:
            raise ValueError("all_gather(sync_grads=True): no gradients go through values of ranks")
        return torch.stack(self._gathered(tensor))

    def _gathered(self, tensor: torch.Tensor, group: Any = None) -> list[torch.Tensor]:
        if not self._joined:
            return [tensor]
        given = program.values.gather("all_gather()", tensor.detach())
        return [one.to(tensor.device) for one in given]

    def _gather_metrics(self) -> None:
        """Lets metrics of torchmetrics gather over the job; otherwise they ask a process group."""
        assert self.lightning_module is not None
        for module in self.lightning_module.modules():
            if hasattr(module, "dist_sync_fn") and hasattr(module, "distributed_available_fn"):
                module.dist_sync_fn = self._gathered
                module.distributed_available_fn = lambda: self._joined
