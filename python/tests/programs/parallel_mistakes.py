"""Prints a rank's errors for models split wrongly: lines "MISTAKE: MESSAGE". Two ranks, by RANK and WORLD_SIZE."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from tributary.torch._model import declare, parallel


def declared(parameters: dict[str, torch.Tensor], mesh: object, replicate: str | None) -> list[object]:
    optimizer = torch.optim.SGD(list(parameters.values()), lr=0.1)
    slots = declare.slots_of(parameters.items(), optimizer)
    tensors = parallel.part_of(mesh, replicate).declare(slots, declare.tensors_of(slots, grouped=True))
    return [(slot.index, slot.share) for slot in slots] + list(tensors)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    stages = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "pp"))
    replicas = init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "pp"))
    slices = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
    value = torch.arange(8.0)

    def split(mesh: object, name: str) -> DTensor:
        return distribute_tensor(value.clone(), mesh[name], [Shard(0)])  # type: ignore[index]

    tries = {
        "values": lambda: declared({"tied": nn.Parameter(value + rank)}, stages, "dp"),
        "shape": lambda: declared({"w": nn.Parameter(torch.ones(4 + rank))}, stages, "dp"),
        "replicas": lambda: declared({f"w{rank}": nn.Parameter(value.clone())}, replicas, "dp"),
        "sharded": lambda: declared({"w": nn.Parameter(split(replicas, "dp"))}, replicas, "dp"),
        "half": lambda: declared({"w": nn.Parameter(value.clone())}, stages, None),
        "name": lambda: declared({"w": nn.Parameter(value.clone())}, stages, "data"),
        "dtensor": lambda: declared({"w": nn.Parameter(split(slices, "tp"))}, None, None),
        "right": lambda: declared(
            {"w": nn.Parameter(split(slices, "tp")), "b": nn.Parameter(value.clone())}, slices, "dp"
        ),
        "tied": lambda: declared({"e": nn.Parameter(value.clone()), f"w{rank}": nn.Parameter(value)}, stages, "dp"),
    }
    for mistake, attempt in tries.items():
        try:
            told = repr(attempt())
        except (ValueError, TypeError) as error:
            told = str(error)
        print(f"{mistake}: {told}", flush=True)
    dist.destroy_process_group()


main()
