"""Ranks whose model fully_shard or parallelize_module has split, each with a library in memory: what they push.

Four ranks, by RANK and WORLD_SIZE. Prints a line "case NAME: ok", or what is wrong, for each case.
"""

from __future__ import annotations

import os
import tempfile
import traceback
from typing import Any, Callable
from unittest import mock

import torch
import torch.distributed as dist
from fake import FakeLibrary
from safetensors.torch import save_file
from torch import nn
from torch.distributed._tensor import Replicate, Shard
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.utils.data import DataLoader, TensorDataset
from with_fake import forget_jobs

import tributary.torch as trib
from tributary.torch._model.slots import as_slice

SAMPLES = 64
BATCH = 3
ARRAYS = ("exp_avg", "exp_avg_sq")  # of AdamW
DATA = TensorDataset(
    torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(1)),
    torch.randn(SAMPLES, 2, generator=torch.Generator().manual_seed(2)),
)


class Net(nn.Module):
    """Some of its tensors have fewer rows than there are ranks to share them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.body = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1), nn.Linear(1, 6))
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.body(x)))


class Sequence(nn.Module):
    """As tensor-parallel blocks are, with norms over a part of the samples on each rank."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.before, self.after = nn.LayerNorm(6), nn.LayerNorm(6)
        self.up, self.down, self.head = nn.Linear(6, 8), nn.Linear(8, 6), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.after(self.down(torch.tanh(self.up(self.before(x))))))


def loss_of(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (net(x) - y).square().mean()


class Case:
    """A model over a mesh, and its job in a library of its own."""

    def __init__(self, dims: dict[str, int], net: type[nn.Module] = Net) -> None:
        self.mesh = init_device_mesh("cpu", tuple(dims.values()), mesh_dim_names=tuple(dims))
        self.data_ranks = dist.get_world_size() // dims.get("tp", 1)
        self.net = net()
        self.library = FakeLibrary()

    def make(self, optimizer: Any = None, **options: Any) -> trib.DistributedOptimizer:
        optimizer = optimizer or torch.optim.SGD(self.net.parameters(), lr=0.1)
        with mock.patch("tributary._library.load", return_value=self.library):
            return trib.DistributedOptimizer(self.net, optimizer, mesh=self.mesh, replicate="dp", **options)

    def batches(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """This rank's batches in an epoch: those of all data ranks together are the data set's order."""
        sampler = trib.DistributedSampler(DATA, shuffle=False)
        return list(DataLoader(DATA, batch_size=BATCH, sampler=sampler))

    def joined(self, number: int, passes: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
        """The batches of all data ranks in a round."""
        size = BATCH * self.data_ranks * passes
        places = slice(number * size, (number + 1) * size)
        return DATA.tensors[0][places], DATA.tensors[1][places]

    def check_sum(self, wanted: nn.Module, replicas: int, weight: int = 1, error: float = 1e-5) -> None:
        """All that is pushed, added up as servers do, is the gradient of one process."""
        pushed = self.library.pushes[0]
        assert pushed["weight"] == weight, pushed["weight"]
        mine = {}
        for tensor, values in zip(self.library.tensors, pushed["gradients"]):
            if self.library.sessions[-1].held[self.library.tensors.index(tensor)]:
                mine[tensor.name] = torch.tensor(values).view(tensor.shape)
        everybody: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everybody, mine)
        sums: dict[str, torch.Tensor] = {}
        for theirs in everybody:
            for name, values in theirs.items():
                sums[name] = sums.get(name, 0) + values / (weight * replicas)
        for name, parameter in wanted.named_parameters():
            found = self._whole(name, sums)
            assert parameter.grad is not None
            off = (found - parameter.grad).norm() / parameter.grad.norm()
            assert off < error, f"{name}: {found}, {parameter.grad}"

    def _whole(self, name: str, sums: dict[str, torch.Tensor]) -> torch.Tensor:
        """Out of its slices."""
        if name in sums:
            return sums[name]
        parameter: Any = dict(self.net.named_parameters())[name]
        names = parameter.device_mesh.mesh_dim_names
        at = dict(zip(names, parameter.device_mesh.get_coordinate()))
        sliced = [n for n, placement in zip(names, parameter.placements) if not placement.is_replicate()]
        mine = sums.get(f"{name}[{','.join(f'{n}={at[n]}' for n in sliced)}]", parameter.to_local().detach())
        whole: torch.Tensor = as_slice(mine, parameter).full_tensor()  # type: ignore[attr-defined]
        return whole


def gradient_of(x: torch.Tensor, y: torch.Tensor, kind: type[nn.Module] = Net) -> nn.Module:
    net = kind()
    loss_of(net, x, y).backward()
    return net


def check_same(one: nn.Module, other: nn.Module) -> None:
    """To the bit, of this rank's slices."""
    for (name, mine), wanted in zip(one.named_parameters(), other.parameters()):
        assert torch.equal(mine.to_local(), wanted.to_local()), f"{name}: {mine}, {wanted}"


def sharded() -> Case:
    """Two replicas over two ranks each; all tensors but those of ``norm``."""
    case = Case({"dp": 2, "fsdp": 2})
    fully_shard(case.net.body, mesh=case.mesh["fsdp"])
    fully_shard(case.net.head, mesh=case.mesh["fsdp"])
    return case


def fully_sharded(**options: Any) -> None:
    case = sharded()
    opt = case.make(**options)
    for number, (x, y) in enumerate(case.batches()[:2]):
        first = number == 0
        loss_of(case.net, x, y).backward()
        opt.step()
        opt.zero_grad()
        if first:  # the parameters of later rounds are those that this rank's own library stepped
            case.check_sum(gradient_of(*case.joined(number)), replicas=2)


def accumulated(how: str) -> None:
    case = sharded()
    opt = case.make(**({"accumulate": 2, "average": True} if how == "accumulate" else {}))
    batches = iter(case.batches())
    for last in (False, True):
        x, y = next(batches)
        if how == "fsdp":  # its own way: nothing is exchanged in the node before the last pass
            for module in (case.net.body, case.net.head):
                module.set_requires_gradient_sync(last)
        with opt.no_sync() if how != "accumulate" and not last else torch.enable_grad():
            loss = loss_of(case.net, x, y)
            (loss if how == "accumulate" else loss / 2).backward()
    opt.step()
    case.check_sum(gradient_of(*case.joined(0, passes=2)), replicas=2, weight=2 if how == "accumulate" else 1)


def counted() -> None:
    case = sharded()
    opt = case.make()
    x, y = case.batches()[0]
    try:
        opt.samples(3 + dist.get_rank() % 2)
    except ValueError as error:
        assert "fully_shard() takes the plain mean of their gradients" in str(error), error
    else:
        raise AssertionError("other counts in a replica are not refused")
    opt.samples(BATCH)
    loss_of(case.net, x, y).backward()
    opt.step()
    case.check_sum(gradient_of(*case.joined(0)), replicas=2, weight=BATCH)


def seeds() -> None:
    case = sharded()
    opt = case.make(seed=3)
    draws: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(draws, float(torch.rand(1)))
    assert len(set(draws)) == len(draws), draws
    del opt


def with_tensor_parallel(**options: Any) -> None:
    case = Case({"dp": 1, "fsdp": 2, "tp": 2})
    parallelize_module(case.net.body, case.mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(case.net, mesh=case.mesh["fsdp"])
    opt = case.make(**options)
    x, y = case.batches()[0]
    loss_of(case.net, x, y).backward()
    opt.step()
    case.check_sum(gradient_of(*case.joined(0)), replicas=1)


def hybrid_inside() -> None:
    """HSDP over the ranks of one replica: fully_shard has exchanged its gradients along both dimensions."""
    case = Case({"dp": 1, "copies": 2, "fsdp": 2})
    fully_shard(case.net.body, mesh=case.mesh["copies", "fsdp"])
    fully_shard(case.net.head, mesh=case.mesh["copies", "fsdp"])
    opt = case.make()
    loss_of(case.net, *case.batches()[0]).backward()
    opt.step()
    case.check_sum(gradient_of(*case.joined(0)), replicas=1)


def mixed_precision() -> None:
    """Pushed gradients have the sharded parameters' type."""
    case = Case({"dp": 2, "fsdp": 2})
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    fully_shard(case.net, mesh=case.mesh["fsdp"], mp_policy=policy)
    opt = case.make()
    x, y = case.batches()[0]
    loss_of(case.net, x, y).backward()
    opt.step()
    case.check_sum(gradient_of(*case.joined(0)), replicas=2, error=0.05)


def sequence_parallel(**options: Any) -> None:
    """The gradient of a norm is a partial sum on each rank that has a part of the samples."""
    case = Case({"dp": 2, "tp": 2}, Sequence)
    plan = {
        "before": SequenceParallel(sequence_dim=0),
        "up": ColwiseParallel(input_layouts=Shard(0)),
        "down": RowwiseParallel(output_layouts=Shard(0)),
        "after": SequenceParallel(sequence_dim=0),
        "head": ColwiseParallel(input_layouts=Shard(0), output_layouts=Replicate()),
    }
    parallelize_module(case.net, case.mesh["tp"], plan)
    opt = case.make(**options)
    x, y = (side[:2] for side in case.batches()[0])
    half = x[case.mesh.get_local_rank("tp")].unsqueeze(0)
    (case.net(half) - y).square().mean().backward()
    opt.step()
    both = case.joined(0)  # neighbours in the order are neighbouring replicas' samples
    case.check_sum(gradient_of(both[0][:4], both[1][:4], Sequence), replicas=2)


def steps_here(kind: type[torch.optim.Optimizer]) -> None:
    """As fully_shard alone with the same optimizer; and on from what was kept."""

    def make(net: nn.Module) -> torch.optim.Optimizer:
        # torch's Muon takes even slices of matrices only.
        return kind(net.parameters() if kind is torch.optim.RMSprop else [net.get_parameter("body.0.weight")], lr=0.01)

    def train(net: nn.Module, opt: torch.optim.Optimizer, until: int) -> None:
        before = 0
        while (round := getattr(opt, "round", before)) < until:
            loss_of(net, *DATA[round * 8 : round * 8 + 8]).backward()
            opt.step()
            opt.zero_grad()
            before = round + 1

    def fresh() -> Case:
        case = Case({"dp": 1, "fsdp": 4})
        fully_shard(case.net, mesh=case.mesh["fsdp"])
        return case

    alone = fresh()
    train(alone.net, make(alone.net), 5)
    case = fresh()
    train(case.net, case.make(make(case.net), name="steps"), 3)
    forget_jobs()
    again = fresh()
    again.library = case.library
    train(again.net, again.make(make(again.net), name="steps"), 5)
    check_same(again.net, alone.net)


def state_of_servers() -> None:
    """From an exported checkpoint torch's optimizer continues over the slices."""

    def fresh() -> tuple[Case, torch.optim.Optimizer]:
        case = Case({"dp": 1, "fsdp": 4})
        fully_shard(case.net, mesh=case.mesh["fsdp"])
        return case, torch.optim.AdamW(case.net.parameters(), lr=0.01)

    def train(net: nn.Module, opt: torch.optim.Optimizer, rounds: range) -> None:
        for round in rounds:
            opt.zero_grad()
            loss_of(net, *DATA[round * 8 : round * 8 + 8]).backward()
            opt.step()

    alone, wanted = fresh()
    train(alone.net, wanted, range(3))
    exported, place = {}, f"[fsdp={dist.get_rank()}]"
    for name, parameter in alone.net.named_parameters():
        for key, value in (("", parameter), *((f".{key}", wanted.state[parameter][key]) for key in ARRAYS)):
            exported[f"{name}{place}{key}"] = value.to_local().detach().clone()
    again, optimizer = fresh()
    opt = again.make(torch.optim.AdamW(again.net.parameters(), lr=0.01))
    with tempfile.NamedTemporaryFile() as file:
        save_file(exported, file.name, {"tributary.step": "3"})
        optimizer.load_state_dict(opt.full_state_dict(file.name))
        refused("call the DistributedOptimizer's", lambda: trib.full_state_dict(again.net, optimizer, file.name))
    opt.finish()
    for mine, other in zip(again.net.parameters(), alone.net.parameters()):
        mine.data.copy_(other.data)
    for net, torchs in ((alone.net, wanted), (again.net, optimizer)):
        train(net, torchs, range(3, 5))
    check_same(again.net, alone.net)


def tops() -> None:
    """A rank is killed before its loop comes to a top that the others come to: all continue from the one before."""
    makes: list[Case] = []

    def fresh() -> trib.DistributedOptimizer:
        case = Case({"dp": 1, "fsdp": 4})
        fully_shard(case.net, mesh=case.mesh["fsdp"])
        if makes:
            case.library = makes[-1].library
        makes.append(case)
        return case.make(name="tops")

    def train(opt: trib.DistributedOptimizer, until: int, to_top: bool) -> None:
        loader = DataLoader(DATA, batch_size=BATCH, sampler=trib.DistributedSampler(DATA, shuffle=False))
        for x, y in loader:
            if opt.round == until:
                return
            loss_of(makes[-1].net, x, y).backward()
            opt.step()
            opt.zero_grad()
            if opt.round == until and not to_top:
                return

    train(fresh(), 5, to_top=True)
    calm = makes.pop().net
    forget_jobs()
    opt = fresh()
    for _ in range(2):  # also when it has gone through the round once more
        train(opt, 3, to_top=dist.get_rank() != 2)
        forget_jobs()
        opt = fresh()
        rounds: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(rounds, opt.round)
        assert rounds == [2] * 4, rounds  # of the top before round 3, which is complete
    train(opt, 5, to_top=True)
    assert opt.round == 5, opt.round
    check_same(makes[-1].net, calm)


def refused(words: str, attempt: Callable[[], Any]) -> None:
    try:
        attempt()
    except (TypeError, ValueError) as error:
        assert words in str(error), error
        return
    raise AssertionError("it is not refused")


def hybrid() -> None:
    case = Case({"dp": 2, "fsdp": 2})
    fully_shard(case.net, mesh=case.mesh)
    refused("fully_shard() exchanges gradients along 'dp', which is for this job to do", case.make)


def all_ranks() -> None:
    case = Case({"dp": 2, "fsdp": 2})
    fully_shard(case.net)  # over all ranks, in a mesh without names
    refused("give fully_shard(..., mesh=mesh['fsdp'])", case.make)


def other_mesh() -> None:
    case = Case({"dp": 2, "fsdp": 2})
    other = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "shard"))
    fully_shard(case.net, mesh=other["shard"])
    refused("along 'shard', which is no dimension of the mesh that was given (['dp', 'fsdp'])", case.make)


def no_mesh() -> None:
    case = sharded()
    optimizer = torch.optim.SGD(case.net.parameters(), lr=0.1)
    refused("give DistributedOptimizer the mesh", lambda: trib.DistributedOptimizer(case.net, optimizer))


def no_model() -> None:
    case = sharded()
    optimizer = torch.optim.SGD(case.net.parameters(), lr=0.1)
    given: dict[str, Any] = {"mesh": case.mesh, "replicate": "dp"}
    refused(
        "give DistributedOptimizer the model itself",
        lambda: trib.DistributedOptimizer(case.net.named_parameters(), optimizer, **given),
    )


def flat() -> None:
    case = Case({"dp": 4})
    case.net = FullyShardedDataParallel(case.net, device_id=torch.device("cpu"))
    refused("wrapped by FullyShardedDataParallel", case.make)


CASES: dict[str, Callable[[], None]] = {
    "backward": fully_sharded,
    "step": lambda: fully_sharded(overlap="step"),
    "accumulate": lambda: accumulated("accumulate"),
    "no_sync": lambda: accumulated("no_sync"),
    "requires_gradient_sync": lambda: accumulated("fsdp"),
    "samples": counted,
    "seed": seeds,
    "tp backward": with_tensor_parallel,
    "tp step": lambda: with_tensor_parallel(overlap="step"),
    "sequence backward": sequence_parallel,
    "sequence step": lambda: sequence_parallel(overlap="step"),
    "rmsprop": lambda: steps_here(torch.optim.RMSprop),
    "muon": lambda: steps_here(torch.optim.Muon),
    "state of servers": state_of_servers,
    "tops": tops,
    "mixed precision": mixed_precision,
    "hybrid inside": hybrid_inside,
    "hybrid": hybrid,
    "all ranks": all_ranks,
    "other mesh": other_mesh,
    "no mesh": no_mesh,
    "no model": no_model,
    "flat": flat,
}


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name, case in CASES.items():
        try:
            case()
            said = "ok"
        except Exception as error:
            said = f"{type(error).__name__}: {error}".replace("\n", " ") + traceback.format_exc().replace("\n", " | ")
        forget_jobs()
        print(f"case {name}: {said}", flush=True)
        dist.barrier()
    os._exit(0)  # threads of the cases still wait for their neighbours


if __name__ == "__main__":
    main()
