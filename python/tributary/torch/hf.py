"""Hugging Face's Trainer, with gradients that go to servers (docs/from-trainer.md).

.. code-block:: python

    from tributary.torch.hf import TributaryTrainer  # in place of: from transformers import Trainer

    trainer = TributaryTrainer(model, args, train_dataset=data, eval_dataset=held_out)
    trainer.train()

Trainers of other packages get it with the mixin: ``class MyTrainer(TributaryMixin, SFTTrainer): pass``.
"""

from __future__ import annotations

import dataclasses
import json
import math
import tempfile
from pathlib import Path
from typing import Any

from torch.utils.data import RandomSampler, SequentialSampler
from transformers import Trainer, TrainerCallback

from tributary.torch._base.exceptions import Rewound
from tributary.torch._base.log import logger
from tributary.torch._run.program import keep, log, program
from tributary.torch.accelerate import Accelerator
from tributary.torch.optimizer import DistributedOptimizer
from tributary.torch.sampler import DistributedSampler

HISTORY = 200  # entries of log_history that are kept with a round


class _Progress:
    """Where a Trainer is, as what is kept with each round.

    Attributes:
        given: the state from which this process continues; None: none.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self.given: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        trainer = self._trainer
        state = dataclasses.asdict(trainer.state)
        state["log_history"] = state["log_history"][-HISTORY:]
        state["stateful_callbacks"] = _states([*trainer.callback_handler.callbacks, trainer.control])
        total = getattr(trainer, "_tr_loss", None)
        return {
            "state": json.dumps(state),
            "samples": self.samples,
            "loss": 0.0 if total is None else float(total),
            "total_loss": float(getattr(trainer, "_total_loss_scalar", 0.0)),
            "logged": int(getattr(trainer, "_globalstep_last_logged", 0)),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.given = state

    @property
    def samples(self) -> int:
        """Samples of all ranks in a round."""
        args = self._trainer.args
        return int(args.train_batch_size * args.gradient_accumulation_steps * args.world_size)

    def write(self, folder: str, rounds: int) -> int:
        """A Trainer's state of where the job is, as it is in a checkpoint. Returns the step.

        rounds: of the job, where nothing more is known.
        """
        given = self.given
        state = {"global_step": rounds} if given is None else json.loads(given["state"])
        if given is not None and given["samples"] != self.samples:  # other ranks or batches
            state["global_step"] = state["global_step"] * given["samples"] // self.samples
            given["logged"] = state["global_step"]
        (Path(folder) / "trainer_state.json").write_text(json.dumps(state))
        return int(state["global_step"])


def _states(callbacks: list[Any]) -> dict[str, Any]:
    """Returns the states of callbacks that have one, in the form of a Trainer's checkpoint."""
    states: dict[str, Any] = {}
    for callback in callbacks:
        if not callable(getattr(callback, "state", None)):
            continue
        name, state = type(callback).__name__, callback.state()
        if name not in states:
            states[name] = state
        elif isinstance(states[name], list):
            states[name].append(state)
        else:
            states[name] = [states[name], state]
    return states


class _GoesOn(TrainerCallback):
    """The mean loss since the last log entry has the steps before this process in it."""

    def __init__(self, trainer: Any, progress: _Progress) -> None:
        self._trainer = trainer
        self._progress = progress

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        trainer, given = self._trainer, self._progress.given
        if given is None or not trainer.goes_on or not hasattr(trainer, "_tr_loss"):
            return
        trainer._tr_loss += given["loss"]
        trainer._total_loss_scalar += given["total_loss"]
        trainer._globalstep_last_logged = given["logged"]
        trainer._initial_global_step = 0  # train_loss is of the whole job


class TributaryMixin:
    """Before a Trainer among a class' bases: it trains over Tributary, and :meth:`train` continues where the job is.

    The Trainer's own arguments say how gradients are accumulated and clipped (``max_grad_norm``: of the mean gradient,
    on the servers), and the precision (``bf16``).

    Args:
        tributary: arguments of the ``DistributedOptimizer``, as ``{"push": "bf16", "name": "finetune"}``.
        arguments, named: the Trainer's.

    Attributes:
        goes_on: train() has not begun the job.

    Raises:
        ValueError: what cannot be together with a job; the message names the way out.
    """

    def __init__(self, *arguments: Any, tributary: dict[str, Any] | None = None, **named: Any) -> None:
        self._job_options = dict(tributary or {})
        self.goes_on = False
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        super().__init__(*arguments, **named)
        self._progress = _Progress(self)
        trainer: Any = self
        if trainer.args.auto_find_batch_size:
            raise ValueError("auto_find_batch_size: ranks would find different ones; give per_device_train_batch_size")
        if trainer.args.n_gpu > 1:
            raise ValueError(
                f"one process has {trainer.args.n_gpu} GPUs: start one for each, with torchrun or `tributary run`"
            )
        if trainer.model_init is not None:
            raise ValueError("model_init: a job has one model; give model=")
        trainer.add_callback(_GoesOn(self, self._progress))

    # ---- what a Trainer makes

    def create_accelerator_and_postprocess(self) -> None:
        trainer: Any = self
        super().create_accelerator_and_postprocess()  # type: ignore[misc]
        options = {"max_grad_norm": trainer.args.max_grad_norm or None, "on_rewind": "raise", **self._job_options}
        Accelerator.take_over(trainer.accelerator, options)

    def _get_train_sampler(self, *arguments: Any) -> Any:
        trainer: Any = self
        sampler = super()._get_train_sampler(*arguments)  # type: ignore[misc]
        if sampler is None or isinstance(sampler, DistributedSampler):
            return sampler
        if not isinstance(sampler, (RandomSampler, SequentialSampler)):
            raise ValueError(
                f"{type(sampler).__name__}: data are dealt out by a tributary.torch.DistributedSampler, which shuffles "
                "or does not: leave out what asks for another order (train_sampling_strategy, group_by_length)"
            )
        args = trainer.args
        return DistributedSampler(
            sampler.data_source,
            shuffle=isinstance(sampler, RandomSampler),
            seed=args.seed if args.data_seed is None else args.data_seed,
            batch_size=args.train_batch_size,
        )

    # ---- training

    def train(self, resume_from_checkpoint: Any = None, trial: Any = None, *arguments: Any, **named: Any) -> Any:
        """As the Trainer's. A process that is started again continues where the job is, as from a checkpoint.

        Raises:
            ValueError: a checkpoint to resume from, though the job is at its beginning; a search of hyper-parameters.
            Stopped, tributary.Error: as DistributedOptimizer.step().
        """
        if trial is not None:
            raise ValueError("hyperparameter_search(): a job has one set of hyper-parameters; start a job for each")
        optimizer = self._attach()
        while True:
            place = self._place(optimizer, resume_from_checkpoint)
            try:
                return super().train(place, trial, *arguments, **named)  # type: ignore[misc]
            except Rewound as error:
                logger.warning("%s; the Trainer goes on from there", error)

    def _attach(self) -> DistributedOptimizer:
        """Before the Trainer begins: its place is the job's."""
        trainer: Any = self
        trainer.create_optimizer()
        trainer.model_wrapped, trainer.optimizer = trainer.accelerator.prepare(trainer.model, trainer.optimizer)
        keep(trainer=self._progress)
        program.loop.told = True  # it begins in the epoch that is open
        attached: DistributedOptimizer = trainer.optimizer.optimizer
        return attached

    def _place(self, optimizer: DistributedOptimizer, checkpoint: Any) -> str | None:
        """A folder with the state from which the Trainer continues; None: it begins."""
        self._folder = tempfile.TemporaryDirectory(prefix="tributary-trainer-")
        self.goes_on = optimizer.round > 0 and self._progress.write(self._folder.name, optimizer.round) > 0
        if self.goes_on:
            return self._folder.name
        if checkpoint:
            raise ValueError(
                f"resume_from_checkpoint={checkpoint!r}, and the job is at its beginning: without a checkpoint the "
                "same command goes on where the job is. To begin with a checkpoint's weights, load them into the model "
                "(from_pretrained), and leave resume_from_checkpoint out"
            )
        return None

    def _load_from_checkpoint(self, *arguments: Any, **named: Any) -> None:
        """The job has the parameters."""

    def _load_optimizer_and_scheduler(self, *arguments: Any, **named: Any) -> None:
        """The job has the optimizer's state, and with it goes the scheduler's."""

    def _load_scaler(self, *arguments: Any, **named: Any) -> None:
        """There is none."""

    def _load_rng_state(self, *arguments: Any, **named: Any) -> None:
        """Generators go with the place in the data."""

    def log(self, logs: dict[str, float], *arguments: Any, **named: Any) -> None:
        norm = logs.get("grad_norm")
        if norm is not None and math.isnan(norm):
            del logs["grad_norm"]  # a job that does not clip measures none
        super().log(logs, *arguments, **named)  # type: ignore[misc]
        if "loss" in logs:
            log(loss=logs["loss"])


class TributaryTrainer(TributaryMixin, Trainer):
    """transformers' Trainer over Tributary. See :class:`TributaryMixin`."""
