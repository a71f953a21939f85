"""Which part of the model this rank holds, with pipeline or tensor parallelism (docs/model-parallel.md)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tributary._library import Tensor
from tributary.torch._launch import ranks_of_environment
from tributary.torch._peers import Peers
from tributary.torch._slots import Slot


class Part:
    """A rank's part of the model: all of it, which is what every rank has without model parallelism.

    Attributes:
        model_rank: which one it is; 0 where every rank holds the whole model.
        replica: data-parallel coordinate, among ``replicas``. None: the job's rank and world size.
    """

    model_rank = 0
    replica: int | None = None
    replicas = 0

    def declare(self, slots: Sequence[Slot], mine: list[Tensor]) -> list[Tensor]:
        """The tensors of all ranks, the same on each of them; sets ``index`` and ``gives`` of this rank's slots.

        mine: of ``slots``, one each.
        """
        for slot in slots:
            if slot.is_split:
                raise TypeError(
                    f"parameter '{slot.name}' is a DTensor: give DistributedOptimizer the mesh, and the name of its "
                    "data-parallel dimension (mesh=, replicate=)"
                )
        return mine

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
        """Tells, from another thread, that a rank which this one cannot go on without has ended, and which."""
        del gone  # any rank that has ended may come back

    def leave(self) -> None:
        """Training has ended well on all ranks: this one's end is no loss."""

    @property
    def watches(self) -> bool:
        """Whether threads of this part are still blocked, which no interpreter may be torn down under."""
        return False

    @property
    def starts_together(self) -> bool:
        """Whether all ranks start again when one is lost. They then go on from the same top of their loops."""
        return False

    def any(self, says: bool) -> bool:
        """Whether a rank says so, of those that start together. All of them ask."""
        return says


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

    def any(self, says: bool) -> bool:
        return self._peers.any(says)


@dataclass(frozen=True)
class _Held:
    """A tensor as a rank holds it, told to the others."""

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
    the same name hold the same tensor. Along the mesh dimensions that DTensors are on (tensor parallelism) all of them
    have its whole gradient, which is counted once; along the others (pipeline stages that share a weight) each has a
    part of its gradient, and the parts are added.

    Args:
        mesh: a ``torch.distributed.DeviceMesh`` of all ranks, whose dimensions have names.
        replicate: name of the dimension along which ranks are replicas of each other.
    """

    def __init__(self, mesh: Any, replicate: str) -> None:
        names = mesh.mesh_dim_names
        if not names or replicate not in names:
            raise ValueError(
                f"replicate={replicate!r} is no dimension of the mesh, which has {list(names or ())}: give its "
                "data-parallel dimension's name (init_device_mesh(..., mesh_dim_names=...))"
            )
        world = torch.distributed.get_world_size()
        if mesh.mesh.numel() != world:
            raise ValueError(f"the mesh has {mesh.mesh.numel()} ranks, and the job {world}: give a mesh of all ranks")
        at = dict(zip(names, mesh.get_coordinate()))
        sizes = dict(zip(names, mesh.mesh.shape))
        self._dims = [name for name in names if name != replicate]
        self._sizes = [sizes[name] for name in self._dims]
        self._place = {name: at[name] for name in self._dims}
        self._replicate = replicate
        self.model_rank = self._number(self._place)
        self.replica: int | None = at[replicate]
        self.replicas = sizes[replicate]
        super().__init__(self._make_group(mesh.mesh.movedim(names.index(replicate), 0).reshape(self.replicas, -1)))

    def _number(self, place: dict[str, int]) -> int:
        number = 0
        for name, size in zip(self._dims, self._sizes):
            number = number * size + place[name]
        return number

    def _place_of(self, number: int) -> dict[str, int]:
        place = {}
        for name, size in zip(reversed(self._dims), reversed(self._sizes)):
            number, place[name] = divmod(number, size)
        return place

    @staticmethod
    def _make_group(replicas: torch.Tensor) -> Any:
        """Of this replica's ranks. Every rank takes part in making all of them."""
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
            if name not in self._place:
                raise TypeError(
                    f"parameter '{slot.name}' is sharded along '{name}', along which this job has replicas "
                    f"(replicate={self._replicate!r}): shard it along {self._dims} only"
                )
            slices.append(f"{name}={self._place[name]}")
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
            slot.gives = self._gives(holders[name], split)
        every = len(parts)
        return [
            replace(one.tensor, holders=() if len(holders[name]) == every else tuple(holders[name]))
            for name, one in tensors.items()
        ]

    def _gives(self, holders: list[int], split: set[str]) -> bool:
        """Of ranks that have the same gradient, the first gives it."""

        def apart(place: dict[str, int]) -> list[int]:
            return [place[name] for name in self._dims if name not in split]

        alike = [part for part in holders if apart(self._place_of(part)) == apart(self._place)]
        return alike[0] == self.model_rank


def _digest(values: torch.Tensor) -> str:
    data = values.detach().to("cpu", torch.float32).contiguous()
    return hashlib.blake2b(data.numpy().tobytes(), digest_size=8).hexdigest()


def part_of(mesh: Any, replicate: str | None) -> Part:
    """This rank's part, from the optimizer's arguments.

    Raises:
        ValueError: only one of them is given, or they do not fit each other.
    """
    if (mesh is None) != (replicate is None):
        raise ValueError("mesh= and replicate= go together: the device mesh, and its data-parallel dimension's name")
    if mesh is not None:
        return MeshPart(mesh, str(replicate))
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return Part()
    world = torch.distributed.get_world_size()
    return GroupPart() if ranks_of_environment() in (None, world) else Part()  # else it is not the job's ranks'
