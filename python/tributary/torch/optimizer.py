"""DistributedOptimizer: a torch optimizer whose gradients go to servers, and whose parameters come from them."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, Callable

import torch

from tributary._library import CONFIGURED
from tributary.torch._base import complaints
from tributary.torch._base.log import listed, logger
from tributary.torch._base.seed import seed_round
from tributary.torch._model import declare
from tributary.torch._model.copies import copies_of
from tributary.torch._model.parallel import part_of
from tributary.torch._model.slots import SharedSlot, Slot, times
from tributary.torch._rounds.checks import Checks, who_steps
from tributary.torch._rounds.round import OpenRound
from tributary.torch._rounds.same_data import WARNING as SAME_DATA
from tributary.torch._rounds.same_data import SameData
from tributary.torch._run.alike import alike_of
from tributary.torch._run.link import Link, Model
from tributary.torch._run.place import Place
from tributary.torch._run.program import program, replica
from tributary.torch._session.attachment import Attachment
from tributary.torch._steps import optimizer_state, sections
from tributary.torch._steps.formula import MEAN, formula_of
from tributary.torch._steps.schedulers import Schedulers
from tributary.torch._steps.settings import Settings, Values, all_values_of, given, said_of

# In which rounds of a process values are compared, to see writes that raise no version.
WATCHED = 10  # the first ones
WATCHED_THEN = 64  # and each so many


class DistributedOptimizer(torch.optim.Optimizer):
    """Wraps a torch optimizer, and trains the model with all ranks of a job.

    Making one attaches to the node's worker daemon, blocks until all ranks are there, and writes the job's parameters
    into the model: rank 0's in a new job, else those of the round after which it continues. From then on each gradient
    leaves as soon as the backward pass has it, and :meth:`step` waits for the new parameters. SGD, Adam, AdamW, Adagrad
    and :class:`tributary.torch.Lion` step on the servers; for every other optimizer the servers answer with the mean
    gradient, and this process steps.

    The optimizer shares the wrapped one's ``param_groups``, so learning-rate schedulers take this one. The rate that a
    group has during backward goes with its gradients; other hyper-parameters are the job's, and stay as they are.

    Args:
        model_or_params: the model; or its parameters, or ``named_parameters()``.
        optimizer: the torch optimizer that steps them. It must not have made a step yet.
        name: the job's name; the job continues where one of this name stopped. Default: the program's name.
        job: path of a job file, or its sections as dicts. The rest follows from the torch optimizer and the other
            arguments; a contradiction is an error.
        max_grad_norm: clips the global norm of the mean gradient, as ``clip_grad_norm_``; infinite: measures it.
        loss_scale: ``"dynamic"`` for :class:`tributary.torch.GradScaler`, or a constant power of two.
        push: encoding of gradients: fp32, bf16, fp16, int8, ``topk:R``, onebit.
        pull: encoding of parameters: fp32, bf16, fp16, int8-delta.
        accumulate: backward passes a step. Their gradients leave in the last one.
        average: the gradients of a step's passes are averaged, over all ranks' passes: do not divide the loss. Else
            they add up, as in DistributedDataParallel: divide the loss by the number of passes.
        overlap: ``"backward"``: gradients leave during backward. ``"step"``: all in :meth:`step`, whatever backward
            does.
        seed: sets random generators in each round, from it, the round and the rank (with a mesh: the replica).
        on_rewind: if all copies of the last rounds are lost: ``"warn"``, or ``"raise"`` :class:`Rewound`.
        step_on: ``"auto"``, or ``"trainers"`` to step here whatever the optimizer is.
        parameters: ``"copy"``: the model has memory of its own. ``"shared"``: it reads the parameters where the node's
            worker writes them, once for all ranks of the node. From the moment that a parameter's gradient is there
            until :meth:`step` returns, its values may already be the next round's.
        rounds: rounds of the whole job, for progress; modes ssp and async need it to end in the same parameters.
        attach_timeout: seconds to wait for the worker and all ranks to be there. Default: ``TRIBUTARY_ATTACH_TIMEOUT``
            of the environment, else 120.
        mesh: a device mesh of all ranks, if each holds a part of the model only: a pipeline's stage, or the shards of
            ``parallelize_module`` or ``fully_shard``.
        replicate: the mesh's dimension along which ranks are replicas. They exchange gradients; those along the others
            hold a replica together.

    Raises:
        ValueError, TypeError: arguments that no job can have.
        tributary.Error: an error of the worker or the coordinator.
    """

    def __init__(
        self,
        model_or_params: declare.Parameters,
        optimizer: torch.optim.Optimizer,
        *,
        name: str | None = None,
        job: sections.JobArgument = None,
        max_grad_norm: float | None = None,
        loss_scale: str | float | None = None,
        push: str = "fp32",
        pull: str = "fp32",
        accumulate: int = 1,
        average: bool = False,
        overlap: str = "backward",
        seed: int | None = None,
        on_rewind: str = "warn",
        step_on: str = "auto",
        parameters: str = "copy",
        rounds: int = 0,
        attach_timeout: float | None = None,
        mesh: Any = None,
        replicate: str | None = None,
    ) -> None:
        complaints.one_of("overlap", overlap, ("backward", "step"))
        complaints.one_of("on_rewind", on_rewind, ("warn", "raise"))
        complaints.one_of("step_on", step_on, ("auto", "trainers"))
        complaints.one_of("parameters", parameters, ("copy", "shared"))
        if accumulate < 1:
            raise ValueError(f"accumulate={accumulate}: must be at least 1")
        if isinstance(optimizer, DistributedOptimizer):
            raise TypeError("the optimizer is distributed already: give the torch optimizer that it wraps")
        if not isinstance(model_or_params, torch.nn.Module):
            model_or_params = list(model_or_params)  # type: ignore[assignment]

        self._built = False
        super().__init__(optimizer.param_groups, dict(optimizer.defaults))
        self.wrapped = optimizer
        self.param_groups = optimizer.param_groups  # the very list, of the very dicts
        self.state = optimizer.state

        self._began = all_values_of(optimizer.param_groups)  # servers have them
        formula = formula_of(optimizer, on_servers=step_on == "auto")
        elsewhere = program.jobs.trained
        self._slots = declare.slots_of(model_or_params, optimizer, share=parameters == "shared", elsewhere=elsewhere)
        options: sections.Sections = {
            "job": sections.named(name),
            "gate": sections.gate(max_grad_norm, loss_scale),
            "encoding": sections.encoding(push, pull),
        }
        self._job = sections.build(sections.read(job), program.free_name(), formula, options)
        self._steps_here = self._job.optimizer == MEAN
        if self._steps_here and parameters == "shared":
            raise ValueError(complaints.SHARED_STEPS_HERE)
        who_steps(model_or_params, optimizer, formula, self._steps_here)

        self._accumulate = accumulate
        self._average = average
        self._overlap = overlap
        self._seed = seed
        self._checks = Checks(optimizer, self._slots, self._job, accumulate, overlap)
        self._holding = False  # inside no_sync()
        self._rounds = 0  # of this process
        self._begun = False  # a gradient of the open round is there
        self._left = False  # and is sent
        self._lock = threading.RLock()  # hooks of several devices run in several threads
        norm = max_grad_norm is not None and not self._job.loss_scale  # else this rank's gradient is scaled
        self._same_data = SameData(mean=self._steps_here, norm=norm)

        part = part_of(mesh, replicate, model_or_params)
        tensors = part.declare(self._slots, declare.tensors_of(self._slots, grouped=not self._steps_here))
        self._slot_of = {slot.index: slot for slot in self._slots}
        buffers = declare.buffers_of(model_or_params)
        state_of = optimizer if self._steps_here else None
        self._link = Link(
            Attachment(
                self._job.name,
                self._job.text,
                tensors,
                initial=lambda index, memory: self._slot_of[index].give(memory),
                computes_with=declare.computes_with(self._slots),
                rounds=rounds,
                model_rank=part.model_rank,
                held=list(self._slot_of),
                copies=copies_of(self._slots),
                shares=any(isinstance(slot, SharedSlot) for slot in self._slots),
                attach_timeout=attach_timeout,
            ),
            Model(
                self._slots, self._arrived, self._push_again, self._clear, self._step_with if self._steps_here else None
            ),
            program.jobs,
            Place(
                program.loop,
                Schedulers(self, optimizer),
                buffers,
                reseed=None if seed is None else lambda round: seed_round(seed, replica(), round),
                alike=alike_of(model_or_params, self._slots, state_of, is_part=mesh is not None, elsewhere=elsewhere),
                model_rank=part.model_rank,
            ),
            part=part,
            on_rewind=on_rewind,
            accumulate=accumulate,
            batches=accumulate,
        )
        program.open(self._link)
        for slot in self._slots:
            self._register(slot)
        self._reseed()
        self._begin_watch()
        self._built = True

    # ---- this rank

    @property
    def round(self) -> int:
        """The newest round whose parameters the model has."""
        return self._link.round

    @property
    def grad_norm(self) -> float | None:
        """The global norm of the newest round's mean gradient, before clipping, unscaled: the same on all ranks. NaN or
        infinite: the round was skipped. None: no round yet, or the job has neither ``max_grad_norm`` nor
        ``loss_scale``.
        """
        gate = self._link.gate(self._link.round)
        return None if gate is None else gate.norm

    @property
    def skipped(self) -> bool:
        """Whether the newest round changed nothing, because a gradient was not finite. The same on all ranks."""
        gate = self._link.gate(self._link.round)
        return gate is not None and gate.skipped

    @property
    def job(self) -> str:
        """The job's sections as JSON, as the servers have them."""
        return self._job.text

    # ---- gradients

    def _register(self, slot: Slot) -> None:
        def hook(parameter: torch.Tensor) -> None:
            self._gradient_is_there(slot)

        if "torch._dynamo" in sys.modules:
            hook = torch.compiler.disable(hook)  # compiled autograd would trace it
        slot.hook = slot.parameter.register_post_accumulate_grad_hook(hook)

    @torch.no_grad()
    def _gradient_is_there(self, slot: Slot) -> None:
        if self._link.closed:
            return
        self._checks.check_capture(slot)
        # With overlap="step" it may be what another net's pass leaves.
        if self._overlap == "backward" or not (program.loop.arrived or self._link.skips):
            self._begin_round()
        if self._link.closed:  # training has ended at the round's beginning
            return
        if slot.sent:
            raise RuntimeError(complaints.gradient_came_twice(slot.name, self._link.round + 1, self._accumulate))
        self._open.backward()
        slot.passes += 1
        if self._overlap == "step":
            slot.note_gradient(samples=self._watches)
            return
        waits = self._holding or slot.passes < self._accumulate
        if self._open.adds_by_weight and (waits or slot.micro_batches):
            gradient = self._dense(slot)
            slot.parameter.grad = None
            # A product of our own: autograd may hand out a tensor that others hold, too.
            slot.micro_batches.add(times(gradient, self._open.factor))
        if not waits:
            self._send(slot)

    def _dense(self, slot: Slot) -> torch.Tensor:
        """p.grad, of a DTensor this rank's slice. All ranks that hold one take part in adding up partial sums."""
        gradient = slot.parameter.grad
        assert gradient is not None
        if slot.is_split:
            return gradient.redistribute(placements=slot.parameter.placements).to_local().detach()
        if gradient.layout == torch.strided:
            return gradient.detach()
        self._checks.warn_once(
            "sparse",
            f"the gradient of '{slot.name}' is sparse: it is sent dense, so that all of it crosses the network",
        )
        return gradient.to_dense()

    def _send(self, slot: Slot) -> None:
        """Sends a tensor's gradient of the open round; zeros if it has none."""
        settings = self._settings(slot.group)
        self._open.weigh(all_in_step=self._overlap == "step")
        if slot.micro_batches:
            total = slot.micro_batches.take()
            slot.set_gradient(total)
            slot.remember(total, 1)
        else:
            slot.remember(None if slot.parameter.grad is None else self._dense(slot), self._open.factor)
        slot.note_gradient(samples=self._watches)
        self._push(slot, settings)

    def _push(self, slot: Slot, settings: Settings) -> None:
        with self._lock:  # the others of a model on several devices wait until it is kept
            if not self._left:
                self._left = True
                self._link.round_leaves()
            if not self._steps_here:
                self._link.say(slot.group, settings)
        assert self._open.weight is not None
        source = slot.source if slot.share else None
        self._link.push(slot.index, source, slot.factor * slot.share, self._open.weight, settings.lr)

    def _settings(self, group: int) -> Settings:
        if self._steps_here:
            return self._open.say(group, Settings(CONFIGURED))
        said = said_of(group, self.param_groups[group], self._began[group], self._job.scheduled)
        return self._open.say(group, said)

    # ---- passes

    def samples(self, count: int) -> None:
        """The next backward pass is of ``count`` samples, and its gradient their mean: ranks are averaged by samples.

        To be called before each backward pass of a round, on every rank; 0 is allowed. Without it every rank counts the
        same, as in DistributedDataParallel. Ranks that ``fully_shard`` has sharded the model over count alike.
        """
        self._link.part.count(count)
        self._open.say_samples(count)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside only add to the round; the next one outside sends.

        Their gradients add up, as in DistributedDataParallel: divide the loss, or pass ``average=True``.
        """
        if self._accumulate > 1:
            raise RuntimeError(f"no_sync() with accumulate={self._accumulate}: use one of the two")
        before, self._holding = self._holding, True
        try:
            yield
        finally:
            self._holding = before

    # ---- steps

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Completes the round: sends the remaining gradients, waits, and writes the new parameters into the model.

        Args:
            closure: runs forward and backward, first.

        Returns:
            What the closure returns.

        Raises:
            Stopped: the job is stopped cleanly. It ends the program with exit status 75.
            Rewound: the job went back, with ``on_rewind="raise"``.
            RuntimeError: the loop loses gradients or parameters; the message names the cure.
            tributary.Error: the job cannot continue.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._link.leaving.check_open()
        if hasattr(self, "grad_scale") or hasattr(self, "found_inf"):  # what torch's GradScaler hands over
            raise RuntimeError(complaints.TORCHS_SCALER)
        self._begin_round()
        self._link.leaving.check_open()
        if self._link.skips:
            self._link.skip()
            self._went_back()
            return loss
        self._checks.check(self._link.round + 1)
        for group in self._open.settings:
            self._settings(group)
        self._send_rest()
        self._link.wait_pushed()
        blocked = time.monotonic_ns()
        compute_ns = blocked - self._open.began_ns
        trains = self._link.sends
        done = self._link.complete_round()
        if not done:
            self._went_back()
            return loss
        if trains and self._same_data.seen(self._link, self._slots, self._open.weight or 0):
            logger.warning("%s", SAME_DATA)
        if self._steps_here and self._link.place.stepped < self._link.round:
            self._step_here()
        if trains:
            samples = self._open.seen(program.loop.samples - self._taken_before or self._accumulate)
            self._link.report.round_done(self._link.round, samples, compute_ns, time.monotonic_ns() - blocked)
        self._end_round()
        return loss

    def _send_rest(self) -> None:
        missing = []
        for slot in reversed(self._slots):
            if slot.sent:
                continue
            if slot.parameter.grad is None and not slot.micro_batches:
                missing.append(slot.name)
            self._send(slot)
        if missing:
            count = f"{len(missing)} of {len(self._slots)} parameters had no gradient"
            self._checks.warn_once(
                "missing",
                f"round {self._link.round + 1}: {count}: {listed(missing[::-1])}. Zeros are sent for them, so "
                "momentum and weight decay do apply. Said once",
            )

    def _push_again(self) -> None:
        for slot in reversed(self._slots):
            if slot.sent:
                self._push(slot, self._open.settings[slot.group])

    def _arrived(self, index: int) -> None:
        if not self._steps_here:  # else the mean gradient of the round before would be lost with a restart
            self._link.take(self._slot_of[index])

    def _step_here(self) -> None:
        gate = self._link.gate(self._link.round)
        if gate is not None and gate.skipped:
            return
        for slot in self._slots:
            mean = self._link.attachment.parameters(slot.index)
            grad = slot.parameter.grad
            if slot.is_split or grad is None or grad.layout != torch.strided:
                slot.set_gradient(torch.empty_like(slot.local()).copy_(mean))
            else:
                grad.copy_(mean)
        declare.complete_gradients(self.param_groups)
        self.wrapped.step()
        self._link.place.stepped = self._link.round

    def _step_with(self, values: list[Values] | None) -> None:
        with given(self.param_groups, values):
            self._step_here()
        self.zero_grad()

    def _begin_round(self) -> None:
        """At the first gradient of a round, or in a step() without any."""
        with self._lock:
            if not self._begun:
                self._begun = True
                program.first_gradient(self._link)

    def _end_round(self) -> None:
        self._next_round()
        if self._link.part.watches:  # the others that hold the model do not come to the top without this rank
            self._link.leaving.if_stopped()

    def _clear(self) -> None:
        """The job went back: the open round begins again."""
        self._next_round()
        self.zero_grad()

    def _next_round(self) -> None:
        for slot in self._slots:
            slot.clear()
        self._reseed()
        self._begin_watch()

    def _went_back(self) -> None:
        self._clear()
        self._link.tell_rewound()

    def _begin_watch(self) -> None:
        """A round begins, with the parameters of the one before."""
        self._open = OpenRound(self._average, lambda: not program.loop.is_void)
        self._begun = self._left = False
        self._taken_before = program.loop.samples
        self._watches = self._rounds < WATCHED or self._rounds % WATCHED_THEN == 0
        self._rounds += 1
        self._checks.round_begins()
        for slot in self._slots:
            slot.watch(samples=self._watches and not self._steps_here)

    def _reseed(self) -> None:
        if self._seed is not None:
            seed_round(self._seed, replica(), self._link.round)

    # ---- the rest of a torch optimizer

    # torch.amp.GradScaler then calls step() in every round, and hands its scale over: step() refuses it.
    _step_supports_amp_scaling = True

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's. A sent gradient is dropped, not zeroed, because a lost round is pushed again with it."""
        for slot in self._slots:
            if slot.sent:
                slot.parameter.grad = None
        super().zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Only while the optimizer is made: the tensors of a job are fixed."""
        if getattr(self, "_built", False):
            raise RuntimeError(complaints.LAYOUT_IS_FIXED.format(what="add_param_group() was called"))
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """In torch's layout: groups, and the state that this process holds (none, where the servers step).

        ``"tributary"`` has the job's name and the newest round. torch's optimizer begins again with a state that has
        none, as a warning says once.
        """
        if not self._steps_here and self._link.round:
            self._checks.warn_once("state", complaints.state_is_elsewhere(self._job.name))
        state = dict(self.wrapped.state_dict())
        state["tributary"] = {"job": self._job.name, "round": self._link.round}
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes groups' values, and in a job that steps here the optimizer's state.

        Parameters and the servers' state come from the job. State of an optimizer that steps on the servers is refused.

        Raises:
            ValueError: it has other groups, or state that only servers could take.
        """
        given = {key: value for key, value in state_dict.items() if key != "tributary"}
        if not self._steps_here and given.get("state"):
            raise ValueError(
                "the state has optimizer state of parameters, which the servers of this job hold: start the job from a "
                "checkpoint of theirs (tributary checkpoint restore), or pass step_on='trainers'"
            )
        optimizer_state.load(self.wrapped, self.param_groups, given)
        self.state = self.wrapped.state

    def full_state_dict(self, exported: str | os.PathLike[str]) -> dict[str, Any]:
        """Returns torch's layout with the servers' state, from a checkpoint exported with ``--optimizer``.

        Without a job, :func:`tributary.torch.full_state_dict` returns the same.
        """
        parameters = {self._link.attachment.tensors[slot.index].name: slot.parameter for slot in self._slots}
        return optimizer_state.of_file(parameters, self.wrapped, exported)

    def finish(self) -> None:
        """Training is complete: leaves the job, and waits until its state is saved. At the program's end it is done by
        itself.

        Raises:
            tributary.NotSaved: the final state is not durable, and why.
        """
        self._link.leaving.finish()
        for slot in self._slots:
            if slot.hook is not None:
                slot.hook.remove()
