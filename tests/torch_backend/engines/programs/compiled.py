"""Each rank: torch.compile around and inside of what is distributed."""

import shutil

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import truth
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

BACKEND = "aot_eager"


def check_ddp() -> None:
    """The compiler followed DDP's forward pass into the backend's broadcast, and failed in it: a
    backend in Python is code to it, as one in C++ is not."""
    for is_outside in (True, False):
        model = truth.net()
        inner = model if is_outside else torch.compile(model, backend=BACKEND)
        ddp = DistributedDataParallel(inner)
        outer = torch.compile(ddp, backend=BACKEND) if is_outside else ddp
        truth.train(outer, truth.sgd(model.parameters()), truth.parts())
        truth.same_parameters(model, truth.trained())
        torch.compiler.reset()


def check_functional_collectives() -> None:
    """All of them in one graph, without a break."""
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.group.WORLD

    def together(mine: Tensor) -> Tensor:
        total = functional.all_reduce(mine.sin(), "sum", group)
        gathered = functional.all_gather_tensor(total * mine, 0, group)
        scattered = functional.reduce_scatter_tensor(gathered, "sum", 0, group)
        swapped = functional.all_to_all_single(gathered, None, None, group)
        return scattered.cos() + swapped.sum() + functional.broadcast(mine, 0, group)

    mine = torch.linspace(rank, rank + 1, 6 * size, dtype=torch.float64)
    compiled = torch.compile(together, backend=BACKEND, fullgraph=True)
    truth.close(compiled(mine), together(mine), "compiled")


def check_gradients() -> None:
    group = dist.group.WORLD

    def loss(mine: Tensor) -> Tensor:
        gathered = functional.all_gather_tensor_autograd(mine.tanh(), 0, group)
        scattered = functional.reduce_scatter_tensor_autograd(gathered**2, "sum", 0, group)
        return (scattered * (1 + dist.get_rank())).sum()

    one = torch.linspace(dist.get_rank(), 2, 12, dtype=torch.float64).requires_grad_()
    other = one.detach().clone().requires_grad_()
    torch.compile(loss, backend=BACKEND)(one).backward()
    loss(other).backward()
    truth.close(one.grad, other.grad, "gradient")


def check_plain_collective_in_a_graph() -> None:
    """dist.all_reduce, which the compiler turns into a functional one."""

    def step(mine: Tensor) -> Tensor:
        doubled = mine * 2
        dist.all_reduce(doubled)
        return doubled + 1

    mine = torch.full((5,), 1.0 + dist.get_rank())
    got = torch.compile(step, backend=BACKEND)(mine)
    truth.close(got, step(mine), "compiled")


def check_tensor_parallel() -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plan = {
        "0": ColwiseParallel(use_local_output=False),
        "2": RowwiseParallel(),
        "4": ColwiseParallel(output_layouts=Replicate()),
    }
    model = parallelize_module(truth.net(), mesh, plan)
    compiled = torch.compile(model, backend=BACKEND)
    truth.train(compiled, truth.sgd(model.parameters()), truth.batches())
    whole = {name: tensor.full_tensor() for name, tensor in model.named_parameters()}
    truth.same_parameters(whole, truth.trained())


def check_fsdp2() -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = truth.net()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    compiled = torch.compile(model, backend=BACKEND)
    truth.train(compiled, truth.sgd(model.parameters()), truth.parts())
    whole = {name: tensor.full_tensor() for name, tensor in model.named_parameters()}
    truth.same_parameters(whole, truth.trained())


CHECKS = [check for name, check in globals().items() if name.startswith("check_")]


def check_inductor() -> None:
    """The compiler that makes C++ of it: DDP, and collectives within a graph."""
    if shutil.which("g++") is None:
        return
    model = truth.net()
    compiled = torch.compile(DistributedDataParallel(model))
    truth.train(compiled, truth.sgd(model.parameters()), truth.parts())
    truth.same_parameters(model, truth.trained())
    group = dist.group.WORLD

    def together(mine: Tensor) -> Tensor:
        total = functional.all_reduce(mine.sin(), "sum", group)
        gathered = functional.all_gather_tensor(total * mine, 0, group)
        return functional.reduce_scatter_tensor(gathered.cos(), "sum", 0, group) + 1

    mine = torch.linspace(dist.get_rank(), 3, 12, dtype=torch.float64)
    truth.close(torch.compile(together)(mine), together(mine), "inductor")


if __name__ == "__main__":
    truth.run(*CHECKS, check_inductor)
