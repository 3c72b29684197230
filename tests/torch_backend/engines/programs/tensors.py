"""Each rank: DTensor, tensor parallelism, functional collectives and meshes against one process."""

import warnings

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable
import truth
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)


def line() -> DeviceMesh:
    return init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))


def numbers(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def check_redistribute() -> None:
    """From every placement to every other, of sizes that do not divide by the ranks."""
    mesh, size = line(), dist.get_world_size()
    for shape in ((12, 8), (7, 5), (1, 3)):
        whole = numbers(*shape)
        for source in (Replicate(), Shard(0), Shard(1)):
            tensor = distribute_tensor(whole, mesh, [source])
            truth.close(tensor.full_tensor(), whole, f"{shape} {source}", 0.0)
            for target in (Replicate(), Shard(0), Shard(1)):
                moved = tensor.redistribute(mesh, [target])
                truth.close(moved.full_tensor(), whole, f"{shape} {source} to {target}", 0.0)
        partial = DTensor.from_local(whole * (1 + dist.get_rank()), mesh, [Partial()])
        total = whole * sum(range(1, size + 1))
        for target in (Replicate(), Shard(0), Shard(1)):
            moved = partial.redistribute(mesh, [target])
            truth.close(moved.full_tensor(), total, f"{shape} partial to {target}")
        for operation, expected in (("max", whole * size), ("min", whole), ("avg", total / size)):
            local = whole.abs() * (1 + dist.get_rank())
            partial = DTensor.from_local(local, mesh, [Partial(operation)])
            truth.close(partial.full_tensor(), expected.abs(), f"partial {operation}")


def check_operations() -> None:
    """Products of matrices in all placements, sums, norms, and what flows back through them."""
    mesh = line()
    left, right = numbers(10, 9, seed=1), numbers(9, 7, seed=2)
    placements = (Replicate(), Shard(0), Shard(1))
    for one in placements:
        for other in placements:
            a = distribute_tensor(left, mesh, [one]).requires_grad_()
            b = distribute_tensor(right, mesh, [other]).requires_grad_()
            product = torch.tanh(a @ b)
            truth.close(product.full_tensor(), torch.tanh(left @ right), f"{one} @ {other}")
            product.sum().backward()
            mine, theirs = left.clone().requires_grad_(), right.clone().requires_grad_()
            torch.tanh(mine @ theirs).sum().backward()
            truth.close(a.grad.full_tensor(), mine.grad, f"gradient of {one}")
            truth.close(b.grad.full_tensor(), theirs.grad, f"gradient of {other}")
    tensor = distribute_tensor(left, mesh, [Shard(0)])
    truth.close(tensor.mean(0).full_tensor(), left.mean(0), "mean")
    truth.close(tensor.softmax(0).full_tensor(), left.softmax(0), "softmax")
    truth.close(torch.linalg.vector_norm(tensor).full_tensor(), left.norm(), "norm")
    assert tensor.argmax().full_tensor() == left.argmax()


def check_distributed_module() -> None:
    """Parameters are sharded; everything else is stock PyTorch.

    The outputs are brought together before the loss: DTensor takes the mean of unequal shards as
    the mean of their means, on any backend.
    """
    mesh = line()

    def shard(_: str, module: nn.Module, mesh: DeviceMesh) -> None:
        for name, parameter in list(module.named_parameters(recurse=False)):
            placed = distribute_tensor(parameter.detach(), mesh, [Shard(0)])
            module.register_parameter(name, nn.Parameter(placed))

    model = distribute_module(truth.net(), mesh, shard)
    optimizer = truth.adam(model.parameters())
    for given in truth.batches():
        optimizer.zero_grad()
        inputs, targets = (distribute_tensor(tensor, mesh, [Replicate()]) for tensor in given)
        outputs = model(inputs).redistribute(mesh, [Replicate()])
        nn.functional.mse_loss(outputs, targets).backward()
        optimizer.step()
    truth.same_parameters(whole(model), truth.trained(truth.adam))


def whole(model: nn.Module) -> dict[str, Tensor]:
    return {
        name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        for name, tensor in model.named_parameters()
    }


def check_tensor_parallel() -> None:
    """Columns, then rows: one all-reduce forward, one backward; 61 columns on 2, 3 or 4 ranks.

    Unequal parts must stay DTensors between the layers: of a plain tensor the next layer believes
    that all ranks have as much.
    """
    mesh = line()
    plan = {
        "0": ColwiseParallel(use_local_output=False),
        "2": RowwiseParallel(),
        "4": ColwiseParallel(output_layouts=Replicate()),
    }
    model = parallelize_module(truth.net(), mesh, plan)
    truth.train(model, truth.adam(model.parameters()), truth.batches())
    truth.same_parameters(whole(model), truth.trained(truth.adam))


class Block(nn.Module):
    """Of a transformer, without attention."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.norm = nn.LayerNorm(16)
        self.up, self.down = nn.Linear(16, 24), nn.Linear(24, 16)
        self.last = nn.LayerNorm(16)
        self.head = nn.Linear(16, 12)
        self.double()

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.down(torch.relu(self.up(self.norm(inputs))))
        return self.head(self.last(hidden))


def check_sequence_parallel() -> None:
    """Between the layers each rank has a part of the sequence: all-gather and reduce-scatter."""
    size = dist.get_world_size()
    sequence = numbers(2, 12, 16, seed=5)
    model, expected = Block(), Block()
    plan = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
        "last": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        "": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(1)),
    }
    root = plan.pop("")
    model = parallelize_module(model, line(), plan)
    model = parallelize_module(model, line(), root)
    mine, theirs = truth.sgd(model.parameters()), truth.sgd(expected.parameters())
    for _ in range(truth.NUM_STEPS):
        for net, optimizer in ((model, mine), (expected, theirs)):
            optimizer.zero_grad()
            (net(sequence) ** 2).mean().backward()
            optimizer.step()
    assert size == 1 or model.up.weight.to_local().shape[0] < 24
    truth.same_parameters(whole(model), expected)


def check_loss_parallel() -> None:
    """The cross entropy of classes that lie on several ranks."""
    mesh = line()
    logits, targets = numbers(6, 12, seed=8), torch.arange(6) % 12
    mine = distribute_tensor(logits, mesh, [Shard(1)]).requires_grad_()
    theirs = logits.clone().requires_grad_()
    with loss_parallel():
        loss = nn.functional.cross_entropy(mine, targets)
        loss.backward()
    expected = nn.functional.cross_entropy(theirs, targets)
    expected.backward()
    truth.close(loss.full_tensor(), expected, "loss")
    truth.close(mine.grad.full_tensor(), theirs.grad, "gradient")


def check_two_axes() -> None:
    """FSDP2 × tensor parallelism, on 2 × 2, 1 × 3, 3 × 1, 1 × 2 and 2 × 1 ranks."""
    size = dist.get_world_size()
    for shape in [(2, 2)] if size == 4 else [(size, 1), (1, size)]:
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
        plan = {"0": ColwiseParallel(use_local_output=False), "2": RowwiseParallel()}
        model = parallelize_module(truth.net(), mesh["tp"], plan)
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
        parts = truth.parts(group=mesh.get_group("dp"))
        truth.train(model, truth.adam(model.parameters()), parts)
        truth.same_parameters(whole(model), truth.trained(truth.adam))


def check_meshes() -> None:
    """Groups of rows and columns, a mesh made flat, and one made of other ranks in other order."""
    rank, size = dist.get_rank(), dist.get_world_size()
    shape = (2, size // 2) if size % 2 == 0 else (size, 1)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("row", "column"))
    grid = torch.arange(size).reshape(shape)
    at = (grid == rank).nonzero()[0]
    for dim, name in enumerate(("row", "column")):
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor, group=mesh.get_group(name))
        assert tensor == grid.select(1 - dim, at[1 - dim]).sum()
        assert mesh.get_local_rank(name) == at[dim]
    flat = mesh["row", "column"]._flatten("all")
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=flat.get_group())
    assert tensor[0] == size
    backwards = DeviceMesh("cpu", list(range(size))[::-1])
    tensor = distribute_tensor(numbers(size, 2), backwards, [Shard(0)])
    truth.close(tensor.full_tensor(), numbers(size, 2), "backwards", 0.0)


def check_gradients_of_functional_collectives() -> None:
    """Each collective's backward pass is its mirror image; against the derivative of the whole."""
    rank, size, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    everybody = [numbers(size, 3, seed=20 + r).requires_grad_() for r in range(size)]
    mine = everybody[rank].detach().clone().requires_grad_()
    weights = [numbers(size, 3, seed=40 + r) for r in range(size)]

    functional.all_gather_tensor_autograd(mine, 0, group).tanh().mul(
        torch.cat(weights) * (1 + rank)
    ).sum().backward()
    whole_sum = sum(1 + r for r in range(size))
    (torch.cat(everybody).tanh() * torch.cat(weights) * whole_sum).sum().backward()
    truth.close(mine.grad, everybody[rank].grad, "all_gather")

    mine.grad = everybody[rank].grad = None
    scattered = functional.reduce_scatter_tensor_autograd(mine * mine, "sum", 0, group)
    (scattered * weights[rank][:1]).sum().backward()
    for tensor in everybody:
        tensor.grad = None
    total = sum(tensor * tensor for tensor in everybody)
    sum((total[r] * weights[r][0]).sum() for r in range(size)).backward()
    truth.close(mine.grad, everybody[rank].grad, "reduce_scatter")

    mine.grad = None
    swapped = functional.all_to_all_single_autograd(mine**3, [1] * size, [1] * size, group)
    (swapped * weights[rank]).sum().backward()
    for tensor in everybody:
        tensor.grad = None
    sum(
        (everybody[s][r] ** 3 * weights[r][s]).sum() for s in range(size) for r in range(size)
    ).backward()
    truth.close(mine.grad, everybody[rank].grad, "all_to_all")


def check_gradients_of_differentiable_collectives() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    everybody = [numbers(4, 3, seed=60 + r).requires_grad_() for r in range(size)]
    mine = everybody[rank].detach().clone().requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        reduced = differentiable.all_reduce(mine.tanh())
        gathered = differentiable.all_gather(mine**2)
        sent = differentiable.broadcast(mine.exp() if rank == 0 else mine * 0, src=0)
    own = (reduced * (1 + rank)).sum() + sum((g * (2 + rank)).sum() for g in gathered)
    (own + (sent * (3 + rank)).sum()).backward()
    for r in range(size):
        reduced = sum(tensor.tanh() for tensor in everybody)
        loss = (reduced * (1 + r)).sum() + sum((t**2 * (2 + r)).sum() for t in everybody)
        (loss + (everybody[0].exp() * (3 + r)).sum()).backward()
    truth.close(mine.grad, everybody[rank].grad, "differentiable")


def check_objects_in_a_part_of_the_ranks() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh(
        "cpu", (2, size // 2) if size % 2 == 0 else (size, 1), mesh_dim_names=("a", "b")
    )
    group = mesh.get_group("a")
    members = dist.get_process_group_ranks(group)
    gathered = [None] * len(members)
    dist.all_gather_object(gathered, {"rank": rank, "tensor": torch.full((rank,), 1.5)}, group)
    assert [each["rank"] for each in gathered] == members
    assert [len(each["tensor"]) for each in gathered] == members
    told = [f"from {rank}"]
    dist.broadcast_object_list(told, src=members[-1], group=group)
    assert told == [f"from {members[-1]}"]


CHECKS = [check for name, check in globals().items() if name.startswith("check_")]

if __name__ == "__main__":
    truth.run(*CHECKS)
