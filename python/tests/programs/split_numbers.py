"""Two ranks that hold a model together: what each pushes is what torch has. Prints a line for each case."""

from __future__ import annotations

from unittest import mock

import torch
import torch.distributed as dist
from fake import FakeLibrary
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

import tributary.torch as trib


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.norm, self.up, self.down = nn.LayerNorm(6), nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(self.norm(x))))


def split(net: Block, mesh: object) -> None:
    """torch's own plan: the norm sees a part of the sequence, so its gradient is a partial sum."""
    plan = {
        "norm": SequenceParallel(sequence_dim=0),
        "up": ColwiseParallel(input_layouts=SequenceParallel(sequence_dim=0).sequence_sharding[0]),
        "down": RowwiseParallel(output_layouts=Replicate()),
    }
    parallelize_module(net, mesh, plan)  # type: ignore[arg-type]


def check(case: str, make: object, passes: int = 1, **options: object) -> None:
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
    net, twin = Block(), Block()
    split(net, mesh["tp"])
    library = FakeLibrary()
    with mock.patch("tributary._library.load", return_value=library):
        opt = trib.DistributedOptimizer(
            net, make(net), name=case.replace(" ", "-"), mesh=mesh, replicate="dp", accumulate=passes, **options
        )
        names = [tensor.name for tensor in library.tensors]
        for step in range(2):
            for number in range(passes):
                x = torch.randn(4, 6, generator=torch.Generator().manual_seed(number))
                (net(x).square().mean() / (1 if "average" in options else passes)).backward()
                if step == 0:
                    (twin(x).square().mean() / passes).backward()
            opt.step()
            opt.zero_grad()
        push = library.pushes[0]  # the second one is only made: this library knows nothing of the other rank's slices
        sent = {name: torch.tensor(values) / push["weight"] for name, values in zip(names, push["gradients"])}
        dist.all_reduce(sent["norm.weight"])  # one of the two gives it
        torch.testing.assert_close(sent["norm.weight"], twin.norm.weight.grad, rtol=1e-5, atol=1e-6)
        mine = twin.up.weight.grad.chunk(2)[dist.get_rank()].flatten()
        torch.testing.assert_close(sent[f"up.weight[tp={dist.get_rank()}]"], mine, rtol=1e-5, atol=1e-6)
        opt._link.leaving.fail("the test is over")
    print(f"{case}: is torch's", flush=True)


def main() -> None:
    dist.init_process_group("gloo")

    def sgd(net: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(net.parameters(), lr=0.1)

    check("backward", sgd)
    check("step", sgd, overlap="step")
    check("passes", sgd, passes=2)
    check("average", sgd, passes=2, average=True)
    check("rmsprop", lambda net: torch.optim.RMSprop(net.parameters(), lr=0.01))
    dist.destroy_process_group()


main()
