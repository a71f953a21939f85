"""Accelerate's ``Accelerator``, with gradients that go to servers (docs/from-accelerate.md).

.. code-block:: python

    import tributary.torch as trib
    from tributary.torch.accelerate import Accelerator  # in place of: from accelerate import Accelerator

    accelerator = Accelerator(gradient_accumulation_steps=2, tributary={"max_grad_norm": 1.0})
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    for epoch in trib.epochs(3):
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import accelerate
import torch
from accelerate.data_loader import prepare_data_loader
from accelerate.optimizer import AcceleratedOptimizer

from tributary.torch._loaders import frameworks
from tributary.torch.optimizer import DistributedOptimizer

SEED = 42  # Accelerate's own default, of data that it shuffles


class _Optimizer(AcceleratedOptimizer):
    """Steps and clears gradients in the last pass of a round only, as Accelerate's does.

    Attributes:
        norm: of the mean gradient, once the round's step() has returned.
    """

    optimizer: DistributedOptimizer

    def __init__(self, optimizer: DistributedOptimizer) -> None:
        super().__init__(optimizer, device_placement=False)
        self.norm = torch.tensor(math.nan)

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        if self.gradient_state.sync_gradients:
            self.norm.fill_(frameworks.norm_of(self.optimizer))


class Accelerator(accelerate.Accelerator):
    """Accelerate's, in whose :meth:`prepare` optimizers become :class:`tributary.torch.DistributedOptimizer`.

    Models are not wrapped. Loaders that shuffle are dealt out by a :class:`tributary.torch.DistributedSampler`, and so
    continue where the job is; all others are split as Accelerate does it. Accelerate's own gathers and reductions use
    its process group.

    Args:
        tributary: arguments of the ``DistributedOptimizer``, as ``{"max_grad_norm": 1.0, "push": "bf16"}``.
        arguments, named: Accelerate's.

    Raises:
        ValueError: what cannot be together with a job; the message names the way out.
    """

    _job_options: dict[str, Any]

    def __init__(self, *arguments: Any, tributary: dict[str, Any] | None = None, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._begin(tributary)

    @classmethod
    def take_over(cls, accelerator: accelerate.Accelerator, tributary: dict[str, Any] | None) -> None:
        """Converts an Accelerator of other code, which has prepared nothing yet, to this class."""
        accelerator.__class__ = cls
        accelerator._begin(tributary)

    def _begin(self, tributary: dict[str, Any] | None) -> None:
        self._job_options = dict(tributary or {})
        self._seen_models: list[torch.nn.Module] = []  # that prepare() was given
        self._jobs: list[_Optimizer] = []
        kind = str(self.distributed_type.value)
        if kind != "NO" and not kind.startswith("MULTI_"):
            raise ValueError(
                f"distributed_type {kind}: Tributary takes the place of DistributedDataParallel. Shard a model inside "
                "of nodes with DistributedOptimizer(mesh=, replicate=), without Accelerate"
            )
        if getattr(self, "parallelism_config", None) is not None:
            raise ValueError(
                "parallelism_config: models in parts are for DistributedOptimizer(mesh=, replicate=) without Accelerate"
            )
        if self.mixed_precision == "fp16" or self.scaler is not None:
            raise ValueError(
                f"mixed precision {self.mixed_precision}: its GradScaler decides on each rank alone, whether a step is "
                "made. Use bf16; or a loop of your own with tributary.torch.GradScaler"
            )
        if self.gradient_state.plugin_kwargs.get("sync_each_batch"):
            raise ValueError("sync_each_batch=True: a round has one exchange; leave it out")
        if self.split_batches or self.dispatch_batches:
            raise ValueError(
                "split_batches and dispatch_batches: each rank reads batches of its own; give the batch size of a rank"
            )
        if self._job_options.get("accumulate", 1) != 1:
            raise ValueError("tributary={'accumulate': ...}: give gradient_accumulation_steps= to the Accelerator")

    # ---- preparing

    def prepare(self, *objects: Any, device_placement: Any = None) -> Any:
        models = [one for one in objects if isinstance(one, torch.nn.Module)]
        for model in models:
            if not any(model is seen for seen in self._seen_models):
                self._seen_models.append(model)
                if self.device_placement and not self.verify_device_map(model):
                    model.to(self.device)  # before an optimizer that stands in front of it
        return super().prepare(*objects, device_placement=device_placement)

    def prepare_model(
        self, model: torch.nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> torch.nn.Module:
        """Autocast, compilation and placement as ever; no DistributedDataParallel."""
        return super().prepare_model(model, device_placement=device_placement, evaluation_mode=True)

    def prepare_optimizer(self, optimizer: torch.optim.Optimizer, device_placement: bool | None = None) -> Any:
        """Attaches to the job, and writes its parameters into the model.

        Raises:
            ValueError: the optimizer's model was not given to prepare().
        """
        if getattr(optimizer, "_is_accelerate_prepared", False):
            return super().prepare_optimizer(optimizer, device_placement)
        if not isinstance(optimizer, DistributedOptimizer):
            optimizer = frameworks.distributed(self._model_of(optimizer), optimizer, self._job_options)
        prepared = _Optimizer(optimizer)
        self._jobs.append(prepared)
        self._optimizers.append(prepared)
        return prepared

    def _model_of(self, optimizer: torch.optim.Optimizer) -> torch.nn.Module:
        for model in self._seen_models:
            if frameworks.holds(optimizer, model.parameters()):
                return model
        raise ValueError(
            f"the parameters of the {type(optimizer).__name__} are of no model that prepare() was given: give it the "
            "model, too, in the same call or before"
        )

    def prepare_data_loader(
        self, data_loader: Any, device_placement: bool | None = None, slice_fn_for_dispatch: Any = None
    ) -> Any:
        seed = self.dataloader_config.data_seed
        if not getattr(data_loader, "_is_accelerate_prepared", False):
            data_loader = frameworks.dealt(data_loader, SEED if seed is None else seed)
        sampler = frameworks.sampler_of(data_loader)
        if sampler is None or getattr(data_loader, "_is_accelerate_prepared", False):
            return super().prepare_data_loader(data_loader, device_placement, slice_fn_for_dispatch)
        frameworks.counts_itself(sampler)
        prepared = prepare_data_loader(
            data_loader,
            self.device,
            num_processes=1,  # the sampler has dealt out the data
            process_index=0,
            put_on_device=self.device_placement if device_placement is None else device_placement,
            dispatch_batches=False,
            non_blocking=self.non_blocking,
            use_stateful_dataloader=self.use_stateful_dataloader,
        )
        prepared._drop_last = True  # a rank's last batch has no samples that were there before
        self._dataloaders.append(prepared)
        return prepared

    # ---- the loop

    @contextlib.contextmanager
    def no_sync(self, model: torch.nn.Module) -> Iterator[None]:
        """Backward passes inside only add to the round."""
        with contextlib.ExitStack() as held:
            for one in self._jobs:
                if frameworks.holds(one, model.parameters()):
                    held.enter_context(one.optimizer.no_sync())
            yield

    def clip_grad_norm_(
        self, parameters: torch.Tensor | Iterable[torch.Tensor], max_norm: float, norm_type: float = 2
    ) -> torch.Tensor:
        """Does nothing: the servers clip the mean gradient by the job's ``max_grad_norm``.

        Returns:
            The norm of the mean gradient, which is there when the optimizer's step() has returned; until then NaN.

        Raises:
            ValueError: another norm than the job's.
        """
        has = self._job_options.get("max_grad_norm")
        if norm_type != 2 or (max_norm != has and max_norm != math.inf):
            raise ValueError(
                f"clip_grad_norm_(max_norm={max_norm}, norm_type={norm_type}): servers clip the mean gradient by its "
                f"2-norm, and the job has max_grad_norm={has}. Give Accelerator(tributary={{'max_grad_norm': "
                f"{max_norm}}})"
            )
        given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        for one in self._jobs:
            if frameworks.holds(one, given):
                one.norm = torch.tensor(math.nan)
                return one.norm
        return torch.tensor(math.nan)

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> NoReturn:
        """Raises ValueError: gradients have left, and no server clips single values."""
        raise ValueError(
            "clip_grad_value_(): gradients leave during the backward pass. Clip the norm: "
            "Accelerator(tributary={'max_grad_norm': ...}), and clip_grad_norm_()"
        )

    def join_uneven_inputs(self, joinables: Any, even_batches: Any = None) -> NoReturn:
        """Raises ValueError: there is no DistributedDataParallel to join."""
        raise ValueError(
            "join_uneven_inputs(): there is no DistributedDataParallel. A loader that shuffles, or has a "
            "tributary.torch.DistributedSampler, gives all ranks as many batches"
        )

    def load_state(self, input_dir: str | None = None, *arguments: Any, **named: Any) -> NoReturn:
        """Raises RuntimeError: the same command continues where the job is."""
        raise RuntimeError(
            "load_state(): parameters, optimizer, schedulers and the place in the data come with the job, which goes "
            "on by itself. To begin with weights of another run, load them into the model before prepare()"
        )
