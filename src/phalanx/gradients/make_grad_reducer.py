"""Construction of the gradient reducer that fits the ranks' placement, and its expected traffic."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from phalanx.comm.collectives.expected_traffic import expected_traffic_if_known
from phalanx.comm.collectives.library import is_native
from phalanx.comm.dtypes import DType
from phalanx.comm.select import AlgorithmChoice, Topology, choose_all_reduce
from phalanx.comm.traffic import Traffic, sum_traffic
from phalanx.comm.wait import WaitPolicy
from phalanx.comm.world import World
from phalanx.gradients.bucketed_reducer import BucketedGradReducer
from phalanx.gradients.buckets import (
    LAST_BUCKET_DIVISOR,
    UNKNOWN_LINK,
    largest_bucket_bytes,
    network_bucket_bytes,
)
from phalanx.gradients.compression.backends import GroupBackend
from phalanx.gradients.compression.compressor import Compressor, Uncompressed
from phalanx.gradients.reducer import Method, obstacle_to_sharing
from phalanx.torch_backend.tensors import dtype_of


def is_worth_hiding(world: World) -> bool:
    """Return whether sums take longer to transfer than to compute, so that the processor has time
    for something else meanwhile. Within a node it has not: there summing is arithmetic itself."""
    return world.size > 1 and not world.on_one_node


def make_grad_reducer(
    world: World,
    parameters: Sequence[nn.Parameter],
    compressor: Compressor,
    *,
    method: Method,
    bucket_bytes: int | None,
    overlaps: bool,
) -> BucketedGradReducer:
    """Return the reducer of `parameters`. Collective.

    bucket_bytes: of the largest bucket; None: as the cache allows, or as the network does where it
    overlaps the backward pass, else one bucket.

    Raises: ValueError when the ranks cannot sum by `method`.
    """
    _check(world, method)
    whole = sum(parameter.nbytes for parameter in parameters)
    largest_bytes = bucket_bytes or _largest_bytes(world, whole, overlaps=overlaps)
    group = world.group
    if overlaps:  # a thread needs a group of its own, and sleeps while this rank computes
        policy = WaitPolicy.for_network()
        group = group.subgroup(range(world.size), name="gradients", policy=policy)
    return BucketedGradReducer(
        parameters,
        group,
        compressor,
        GroupBackend(group, None if method == "auto" else method),
        largest_bytes=largest_bytes,
        last_bytes=largest_bytes // LAST_BUCKET_DIVISOR if overlaps else None,
        overlaps=overlaps,
    )


def _largest_bytes(world: World, whole: int, *, overlaps: bool) -> int:
    if world.on_one_node:
        return largest_bucket_bytes(world.size, world.settings.cache_bytes)
    return network_bucket_bytes(world.link or UNKNOWN_LINK) if overlaps else whole


def choose_algorithm(world: World, count: int, dtype: DType, method: Method) -> AlgorithmChoice:
    """Return the algorithm that sums an uncompressed bucket of `count` values."""
    return choose_all_reduce(
        count * dtype.itemsize,
        dtype,
        topology=Topology(
            nodes=world.group.nodes,
            shares_memory=world.group.shm is not None,
            is_emulated=world.link is not None,
        ),
        requested=world.settings.all_reduce if method == "auto" else method,
        is_native=is_native(dtype),
    )


def expected_step_traffic(
    world: World,
    parameters: Sequence[nn.Parameter],
    plan: Sequence[Sequence[int]],
    compressor: Compressor,
    method: Method,
) -> Traffic | None:
    """Return this rank's traffic for all buckets of `plan`; None where there is no formula."""
    moves: list[Traffic] = []
    dtype = dtype_of(parameters[0].dtype)
    for numbers in plan:
        shapes = [parameters[number].shape for number in numbers]
        if not isinstance(compressor, Uncompressed):
            num_bytes = compressor.sent_bytes(shapes, world.rank, world.size)
            moves.append(Traffic(num_bytes, num_bytes, 0))
            continue
        count = sum(shape.numel() for shape in shapes)
        algorithm = choose_algorithm(world, count, dtype, method).algorithm
        moved = expected_traffic_if_known(algorithm, count, dtype.itemsize, world.rank, world.size)
        if moved is None:
            return None
        moves.append(moved)
    return sum_traffic(moves)


def _check(world: World, method: Method) -> None:
    if method == "library" and world.link is not None:
        raise ValueError("the emulated link does not slow the MPI library's own all-reduce")
    obstacle = obstacle_to_sharing(world)
    if method == "shared" and obstacle is not None:
        raise ValueError(f"the shared all-reduce cannot be used: {obstacle}")
