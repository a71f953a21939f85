"""Which part of the model this rank holds, with pipeline or tensor parallelism (docs/model-parallel.md)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tributary._library import Tensor
from tributary.torch._base.launch import ranks_of_environment
from tributary.torch._base.peers import Peers
from tributary.torch._model.fully_sharded import dimensions_of
from tributary.torch._model.slots import Slot


class Part:
    """A rank's part of the model: all of it, which is what every rank has without model parallelism.

    Attributes:
        model_rank: which one it is; 0 where every rank holds the whole model.
        replica: which of the ``replicas`` shares of the data this rank sees. None: the job's rank and world size.
    """

    model_rank = 0
    replica: int | None = None
    replicas = 0

    def declare(self, slots: Sequence[Slot], mine: list[Tensor]) -> list[Tensor]:
        """The tensors of all ranks, the same on each of them; sets ``index`` and ``share`` of this rank's slots.

        mine: of ``slots``, one each.
        """
        for slot in slots:
            if slot.is_split:
                raise TypeError(
                    f"parameter '{slot.name}' is a DTensor: give DistributedOptimizer the mesh, and the name of its "
                    "data-parallel dimension (mesh=, replicate=)"
                )
        return mine

    def count(self, samples: int) -> None:
        """The next backward pass is of so many samples.

        Raises:
            ValueError: gradients of this rank are averaged with those of ranks that count otherwise, before the job has
                them.
        """
        del samples

    def agree(self, round: int, stops: bool, over: Callable[[], bool]) -> bool | None:
        """Whether a rank of this replica is to stop after the round. Each of them asks after each round.

        Args:
            round: that is complete here.
            stops: what this rank says. Its first word of a round counts.
            over: asked now and then while others are waited for: whether they may never ask, because the view ended
                before they had the round.

        Returns:
            None if ``over`` said so: ask again when this rank is attached again, and has the round.
        """
        del round, over
        return stops

    def watch(self, gone: Callable[[str], None]) -> None:
        """Reports, from another thread, that a rank which this one cannot continue without has ended, and which."""
        del gone  # any rank that has ended may come back

    def leave(self) -> None:
        """Training has ended well on all ranks: this one's end is no loss."""

    @property
    def watches(self) -> bool:
        """Whether threads of this part are still blocked, which no interpreter may be torn down under."""
        return False

    @property
    def starts_together(self) -> bool:
        """Whether all ranks start again when one is lost. They then continue from the same top of their loops."""
        return False

    def least(self, number: int) -> int:
        """The least number of ranks that start together. All of them ask when they are attached for the first time."""
        return number


class GroupPart(Part):
    """All of the model, on a rank of a program that has a process group of torch's.

    Args:
        group: on Gloo, of ranks that stop together. None: all.
    """

    def __init__(self, group: Any = None) -> None:
        self._peers = Peers(group)

    def agree(self, round: int, stops: bool, over: Callable[[], bool]) -> bool | None:
        return self._peers.agree(round, stops, over)

    def watch(self, gone: Callable[[str], None]) -> None:
        self._peers.watch(gone)

    def leave(self) -> None:
        self._peers.leave()

    @property
    def watches(self) -> bool:
        return self._peers.watches

    @property
    def starts_together(self) -> bool:
        return True

    def least(self, number: int) -> int:
        return self._peers.least(number)


@dataclass(frozen=True)
class _Held:
    """A tensor as a rank holds it, sent to the others."""

    tensor: Tensor
    values: str  # of its initial values, a digest

    def difference(self, other: _Held) -> str:
        """Between two ranks that should hold the same; empty: none."""
        if self.tensor.shape != other.tensor.shape:
            return f"shape {list(self.tensor.shape)} and {list(other.tensor.shape)}"
        if self.tensor.group != other.tensor.group:
            return f"parameter group {self.tensor.group} and {other.tensor.group}"
        return "" if self.values == other.values else "different initial values"


def _mesh_of(parameter: torch.Tensor) -> Any:
    """The mesh of a DTensor; None: it is none."""
    return getattr(parameter, "device_mesh", None)


class MeshPart(GroupPart):
    """The part that a rank has by its place in a device mesh.

    Tensors are known by their names, and a slice of a DTensor by its name and its place: ranks that have a tensor of
    the same name hold the same tensor. Each holder's part of its gradient depends on the mesh's dimension:

    - sharded (``fully_shard``): each has a mean over data of its own. ``fully_shard`` has taken the mean of them for
      tensors that it knows; of others each rank gives a part.
    - others that DTensors are on (tensor parallelism): all have its whole gradient, which is counted once.
    - the rest (pipeline stages that share a weight): each has a part of its gradient, and the parts are added.

    Args:
        mesh: a ``torch.distributed.DeviceMesh`` of all ranks, whose dimensions have names.
        replicate: name of the dimension along which ranks are replicas of each other.
        sharded: names of those along which ``fully_shard`` has sharded the model.
    """

    def __init__(self, mesh: Any, replicate: str, sharded: Sequence[str] = ()) -> None:
        names = mesh.mesh_dim_names
        if not names or replicate not in names:
            raise ValueError(
                f"replicate={replicate!r} is no dimension of the mesh, which has {list(names or ())}: give its "
                "data-parallel dimension's name (init_device_mesh(..., mesh_dim_names=...))"
            )
        world = torch.distributed.get_world_size()
        if mesh.mesh.numel() != world:
            raise ValueError(f"the mesh has {mesh.mesh.numel()} ranks, and the job {world}: give a mesh of all ranks")
        _check_sharded(sharded, names, replicate)
        self._at = dict(zip(names, mesh.get_coordinate()))
        self._sizes = dict(zip(names, mesh.mesh.shape))
        self._dims = [name for name in names if name != replicate]
        self._sharded = set(sharded)
        self._replicate = replicate
        self.model_rank = self._number(self._dims)
        data = [name for name in names if name == replicate or name in self._sharded]
        self.replica: int | None = self._number(data)
        self.replicas = math.prod(self._sizes[name] for name in data)
        self._group = self._make_group(mesh.mesh.movedim(names.index(replicate), 0).flatten(1))
        super().__init__(self._group)

    def _number(self, dims: Sequence[str]) -> int:
        """This rank's place in some of the dimensions."""
        number = 0
        for name in dims:
            number = number * self._sizes[name] + self._at[name]
        return number

    def _place_of(self, model_rank: int) -> dict[str, int]:
        place = {}
        for name in reversed(self._dims):
            model_rank, place[name] = divmod(model_rank, self._sizes[name])
        return place

    @staticmethod
    def _make_group(replicas: torch.Tensor) -> Any:
        """Makes the group of this replica's ranks. Every rank takes part in making all replicas' groups."""
        mine = None
        for ranks in replicas.tolist():
            group = torch.distributed.new_group(ranks, backend="gloo")
            if torch.distributed.get_rank() in ranks:
                mine = group
        return mine

    def _name(self, slot: Slot) -> str:
        """As the job knows the tensor."""
        mesh = _mesh_of(slot.parameter)
        if mesh is None:
            return slot.name
        slices = []
        for name, placement in zip(mesh.mesh_dim_names or (), slot.parameter.placements):
            if placement.is_replicate():
                continue
            if name not in self._dims:
                why = (
                    f"along which this job has replicas (replicate={self._replicate!r})"
                    if name == self._replicate
                    else f"which is no dimension of the mesh that was given ({[*self._sizes]})"
                )
                raise TypeError(
                    f"parameter '{slot.name}' is sharded along '{name}', {why}: shard it along {self._dims} only"
                )
            slices.append(f"{name}={self._at[name]}")
        return f"{slot.name}[{','.join(slices)}]" if slices else slot.name

    def declare(self, slots: Sequence[Slot], mine: list[Tensor]) -> list[Tensor]:
        held: dict[str, _Held] = {}
        split: set[str] = set()  # dimensions that DTensors are on
        for slot, tensor in zip(slots, mine):
            name = self._name(slot)
            mesh = _mesh_of(slot.parameter)
            split.update(mesh.mesh_dim_names or () if mesh is not None else ())
            held[name] = _Held(replace(tensor, name=name), _digest(slot.local()))
        everybody: list[Any] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(everybody, (self.model_rank, held, split))
        parts: dict[int, tuple[int, dict[str, _Held]]] = {}
        for rank, (part, theirs, dims) in enumerate(everybody):
            split |= dims
            first, known = parts.setdefault(part, (rank, theirs))
            if known.keys() != theirs.keys():
                other = sorted(known.keys() ^ theirs.keys())[0]
                raise ValueError(
                    f"ranks {first} and {rank} are replicas of each other ({self._replicate}), but only one of them "
                    f"has parameter '{other}': build the same model on both"
                )
        holders: dict[str, list[int]] = {}
        tensors: dict[str, _Held] = {}
        for part in sorted(parts):
            for name, one in parts[part][1].items():
                known_one = tensors.setdefault(name, one)
                holders.setdefault(name, []).append(part)
                if difference := known_one.difference(one):
                    places = [self._place_of(number) for number in (holders[name][0], part)]
                    raise ValueError(
                        f"parameter '{name}' at {places[0]} and at {places[1]} of the mesh has {difference}: what has "
                        "the same name is the same tensor. Tied weights must begin with the same values; others need "
                        "names of their own"
                    )
        order = {name: index for index, name in enumerate(tensors)}
        for slot, name in zip(slots, held):
            slot.index = order[name]
            slot.share = self._share(slot, holders[name], split)
        every = len(parts)
        return [
            replace(one.tensor, holders=() if len(holders[name]) == every else tuple(holders[name]))
            for name, one in tensors.items()
        ]

    def _share(self, slot: Slot, holders: list[int], split: set[str]) -> float:
        """The share of its gradient that this rank gives. The first of ranks that have the same one gives it; a mean
        that has not been taken is made of parts.
        """
        mesh = _mesh_of(slot.parameter)
        on = set(() if mesh is None else mesh.mesh_dim_names)
        apart = [name for name in self._dims if name not in (split - self._sharded) | on]

        def place(model_rank: int) -> list[int]:
            return [self._place_of(model_rank)[name] for name in apart]

        first = next(part for part in holders if place(part) == place(self.model_rank))
        if first != self.model_rank:
            return 0.0
        return 1 / math.prod(self._sizes[name] for name in apart if name in self._sharded)

    def count(self, samples: int) -> None:
        if not self._sharded:
            return
        everybody = [torch.zeros(2, dtype=torch.int64) for _ in range(self._group.size())]
        mine = torch.tensor([torch.distributed.get_rank(), samples])
        torch.distributed.all_gather(everybody, mine, group=self._group)
        for rank, theirs in (pair.tolist() for pair in everybody):
            if theirs != samples:
                raise ValueError(
                    f"samples({samples}) here, and samples({theirs}) on rank {rank}, which holds the model together "
                    "with this one: fully_shard() takes the plain mean of their gradients. Give all of them the same "
                    "count, or leave samples() out and multiply each rank's loss by count * ranks / all ranks' counts"
                )


def _digest(values: torch.Tensor) -> str:
    data = values.detach().to("cpu", torch.float32).contiguous()
    return hashlib.blake2b(data.numpy().tobytes(), digest_size=8).hexdigest()


def _check_sharded(sharded: Sequence[str], names: Sequence[str], replicate: str) -> None:
    """Whether fully_shard() leaves to the job what is the job's."""
    if replicate in sharded:
        raise ValueError(
            f"fully_shard() exchanges gradients along '{replicate}', which is for this job to do "
            f"(replicate={replicate!r}): give it a mesh without that dimension, as mesh['fsdp'] of "
            f"init_device_mesh(..., mesh_dim_names=({replicate!r}, 'fsdp'))"
        )
    if unknown := [name for name in sharded if name not in names]:
        raise ValueError(
            f"fully_shard() sharded the model along '{unknown[0]}', which is no dimension of the mesh that was given "
            f"({list(names)}): make one mesh of all ranks, and give fully_shard() a part of it"
        )


def part_of(mesh: Any, replicate: str | None, model: Any = ()) -> Part:
    """This rank's part, from the optimizer's arguments.

    Raises:
        ValueError: only one of mesh and replicate is given, or they do not fit each other, or the model.
        TypeError: as :func:`dimensions_of`.
    """
    if (mesh is None) != (replicate is None):
        raise ValueError("mesh= and replicate= go together: the device mesh, and its data-parallel dimension's name")
    if mesh is not None:
        return MeshPart(mesh, str(replicate), dimensions_of(model))
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return Part()
    world = torch.distributed.get_world_size()
    return GroupPart() if ranks_of_environment() in (None, world) else Part()  # else it is not the job's ranks'
