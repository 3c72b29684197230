"""Each rank: sum lists of tensors in the order of trees, and compare with what one process sums."""

import random
from collections.abc import Sequence

import torch
from mpi4py import MPI
from torch import Tensor

from phalanx.comm import kernels
from phalanx.comm.errors import MismatchError
from phalanx.comm.link import Link
from phalanx.comm.world import World
from phalanx.errors import UserError
from phalanx.gradients.division import Division
from phalanx.gradients.reducer import SummedLoss
from phalanx.gradients.tree_reducer import OverlappedTreeReducer, TreeReducer

NUM_LEAVES, STEPS = 11, 12
LIKES = [
    torch.empty(3, 1000),
    torch.empty(77, dtype=torch.bfloat16),
    torch.empty(0),
    torch.empty(9000, dtype=torch.float16),
    torch.empty(5, 5, dtype=torch.complex64),
    torch.empty(40_001),
    torch.empty(33, dtype=torch.float64),
]
LINK = Link(bandwidth_bytes_per_s=1e10, latency_s=0.0)
"""With one, ranks share no memory."""
RANGE = 8.0
"""Exponents of values, so that the order of sums matters."""


def tensors_of(leaf: int) -> list[Tensor]:
    torch.manual_seed(leaf)
    return [
        torch.randn(like.shape, dtype=like.dtype) * 2 ** random.Random(leaf).uniform(-RANGE, RANGE)
        for like in LIKES
    ]


def division(step: int, num_ranks: int) -> tuple[list[list[int]], list[int]]:
    """Leaves of each rank, of which one has none in some steps; and those with samples."""
    drawn = random.Random(step)
    owners: list[list[int]] = [[] for _ in range(num_ranks)]
    for leaf in drawn.sample(range(NUM_LEAVES), NUM_LEAVES):
        owners[drawn.randrange(num_ranks - (step % 3 == 0))].append(leaf)
    leaves = range(NUM_LEAVES) if step % 2 else drawn.sample(range(NUM_LEAVES), 1 + step // 2)
    return owners, sorted(leaves)


def reducer_of(
    world: World | None, likes: Sequence[Tensor] = LIKES, owners: Sequence[int] | None = None
) -> TreeReducer:
    parameters = [torch.empty_like(like) for like in likes]
    division = Division(NUM_LEAVES, 1 if world is None else world.size)
    return TreeReducer(parameters, (), division, world, owners=owners)


def summed(
    reducer: TreeReducer, owners: Sequence[Sequence[int]], rank: int, leaves: Sequence[int]
) -> tuple[list[Tensor], SummedLoss]:
    """Return the sums of the parameters, and of the numbers that are noted."""
    reducer._division.assign(owners)
    reducer.begin_step(leaves)
    for leaf in owners[rank]:
        if leaf in leaves:
            add(reducer, leaf, tensors_of(leaf))
    reducer.reduce()
    assert not reducer.missing
    return [parameter.grad for parameter in reducer._parameters], reducer.summed


def add(reducer: TreeReducer, leaf: int, tensors: Sequence[Tensor]) -> None:
    for parameter, tensor in zip(reducer._parameters, tensors, strict=False):
        parameter.grad = tensor
    reducer.add(leaf, 1.0, (0.1 * leaf, 1.0, leaf), ())
    assert all(parameter.grad is None for parameter in reducer._parameters)


def check_sums(world: World, *, is_shared: bool, owners_of_sums: Sequence[int] = ()) -> None:
    reducer, alone = reducer_of(world, owners=owners_of_sums or None), reducer_of(None)
    for step in range(STEPS):
        owners, leaves = division(step, world.size)
        found, losses = summed(reducer, owners, world.rank, leaves)
        expected, expected_losses = summed(alone, [range(NUM_LEAVES)], 0, leaves)
        assert losses == expected_losses
        assert reducer.is_divided == bool(owners_of_sums)
        for place, (tensor, other) in enumerate(zip(found, expected, strict=True)):
            if owners_of_sums and owners_of_sums[place] != world.rank:
                assert not any(tensor.stride()) and not tensor.any()
                continue
            same = tensor.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8)
            assert tensor.dtype == other.dtype and torch.equal(*same), (step, tensor.dtype)
        assert reducer._vectors[0].is_finite is (True if is_shared else None)
    if is_shared:
        check_not_finite(world, reducer)
    world.barrier()
    reducer.close()


def check_not_finite(world: World, reducer: TreeReducer) -> None:
    """Every rank knows of them, also where each term is finite."""
    for bad in (float("nan"), 60_000.0):
        reducer._division.assign([range(NUM_LEAVES), [], []])
        reducer.begin_step(range(4))
        if world.rank == 0:
            for leaf in range(4):
                tensors = tensors_of(leaf)
                tensors[3][8999] = bad if leaf < 2 else 0.0  # of float16
                add(reducer, leaf, tensors)
        reducer.reduce()
        assert reducer._vectors[0].is_finite is False
        assert not reducer.is_finite()


def check_mismatch(world: World) -> None:
    """Of who has which leaves."""
    reducer = reducer_of(world, LIKES[:1])

    def step(owners: list[list[int]]) -> None:
        summed(reducer, owners, world.rank, range(6))

    step([[0, 1], [2], [3, 4, 5]])  # which makes memory for both
    try:
        step([[0, 1], [2, 3], [4, 5]] if world.rank != 1 else [[0, 1], [2], [3, 4, 5]])
    except MismatchError as error:
        print(f"rank {world.rank} says: {error}", flush=True)
    world.barrier()


def check_grown_gradient() -> None:
    """After its bucket was summed; on one rank."""
    world = World.create(timeout_s=30, communicator=MPI.COMM_SELF)
    parameter = torch.nn.Parameter(torch.ones(3))
    reducer = OverlappedTreeReducer([parameter], (), Division(NUM_LEAVES, 1), world)
    reducer.begin_step([3])
    reducer.begin_micro_batch(3, 1, 1)
    try:
        with reducer:
            for _ in range(2):
                (2 * parameter).sum().backward()
    except UserError as error:
        assert "use use_reentrant=False" in str(error)
    else:
        raise AssertionError("it was not seen")
    reducer.close()
    world.close()


def check_late_hooks() -> None:
    """Hooks that a program registers after the reducer change what is summed; on one rank."""
    world = World.create(timeout_s=30, communicator=MPI.COMM_SELF)
    parameters = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    reducer = OverlappedTreeReducer(parameters, (), Division(NUM_LEAVES, 1), world)

    def enlarge(parameter: torch.Tensor) -> None:
        parameter.grad.mul_(5)

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(enlarge)
    reducer.begin_step([3])
    reducer.begin_micro_batch(3, 1, 1)
    with reducer:
        sum((2 * parameter).sum() for parameter in parameters).backward()
    assert all(parameter.grad.tolist() == [10.0] * 3 for parameter in parameters)
    reducer.close()
    world.close()


def main() -> None:
    check_grown_gradient()
    check_late_hooks()
    world = World.create(timeout_s=30)
    check_sums(world, is_shared=kernels.compiled() is not None)
    check_mismatch(world)
    over_messages = World.create(timeout_s=30, link=LINK)
    check_sums(over_messages, is_shared=False)
    check_sums(over_messages, is_shared=False, owners_of_sums=[1, 0, 1, 2, 2, 0, 1])
    over_messages.close()
    world.close()
    print(f"rank {world.rank} is done", flush=True)


main()
