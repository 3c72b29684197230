"""Construction of the reducer that fits the ranks' placement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from phalanx.comm.collectives.library import is_native
from phalanx.comm.dtypes import DType
from phalanx.comm.group import Group
from phalanx.comm.node_groups import lane_group, node_group
from phalanx.comm.select import Algorithm, choose_all_reduce
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
from phalanx.gradients.compression.by_lanes import LanesCompressor
from phalanx.gradients.compression.compressor import Compressor, Uncompressed
from phalanx.gradients.flat_reducer import MessageGradReducer, SharedGradReducer
from phalanx.gradients.reducer import GradReducer
from phalanx.torch_backend.tensors import dtype_of

Method = Literal["auto", "shared", "library", "naive", "direct", "ring", "tree", "halving"]


def is_worth_hiding(world: World) -> bool:
    """Return whether sums take longer to transfer than to compute, so that the processor has time
    for something else meanwhile. Within a node it has not: there summing is arithmetic itself."""
    return world.size > 1 and not world.on_one_node


def make_reducer(
    world: World,
    parameters: Sequence[Tensor],
    compressor: Compressor | None = None,
    *,
    method: Method = "auto",
    bucket_bytes: int | None = None,
    overlaps: bool = False,
) -> GradReducer:
    """Return a reducer of `parameters`: of buckets where they are compressed, summed during the
    backward pass or of several types, else of one flat vector. Collective.

    The flat one takes shared memory when all ranks are on one node, and the algorithm that the
    group chooses for its length otherwise. naive, direct, ring, tree, halving: on messages, also
    within a node.

    Raises: ValueError when the ranks cannot sum by `method`.
    """
    _check(world, method)
    compressor = compressor or Uncompressed()
    is_flat = isinstance(compressor, Uncompressed) and len({p.dtype for p in parameters}) == 1
    if overlaps or not is_flat:
        return make_bucketed_reducer(
            world,
            parameters,
            compressor,
            method=method,
            bucket_bytes=bucket_bytes,
            overlaps=overlaps,
        )
    return _make_flat(world, parameters, method)


def make_bucketed_reducer(
    world: World,
    parameters: Sequence[Tensor],
    compressor: Compressor,
    *,
    method: Method = "auto",
    bucket_bytes: int | None = None,
    overlaps: bool,
    on_thread: bool | None = None,
    divisor: float = 1.0,
    has_hooks: bool = True,
) -> BucketedGradReducer:
    """Return a reducer of buckets. Collective.

    bucket_bytes: of the largest bucket; None: as the cache allows, or as the network does where it
    overlaps the backward pass, else one bucket.
    overlaps: a bucket is summed as soon as it is complete; else that happens at the end.
    on_thread: by a thread with a group of its own; None: where it overlaps.
    divisor: of uncompressed sums. has_hooks: as `BucketedGradReducer`.
    Raises: ValueError for complex parameters whose gradients are to be compressed.
    """
    if not isinstance(compressor, Uncompressed) and any(p.is_complex() for p in parameters):
        raise ValueError("gradients of complex parameters are not compressed")
    on_thread = overlaps if on_thread is None else on_thread
    whole = sum(parameter.nbytes for parameter in parameters)
    largest_bytes = bucket_bytes or largest_bytes_of(world, whole, overlaps=overlaps)
    group = world.group
    if on_thread:  # it needs a group of its own, and sleeps while this rank computes
        policy = WaitPolicy.for_network()
        group = group.subgroup(range(world.size), name="gradients", policy=policy)

    subgroups: list[Group] = []
    if compressor.takes_slices and group.topology.has_lanes:
        subgroups = [node_group(group), lane_group(group)]
        compressor = LanesCompressor(compressor, *subgroups)

    def algorithm_of(count: int, dtype: DType) -> Algorithm:
        return choose_algorithm(world, count, dtype, method)

    return BucketedGradReducer(
        parameters,
        group,
        compressor,
        GroupBackend(group, None if method == "auto" else method, divisor=divisor),
        subgroups=subgroups,
        algorithm_of=algorithm_of,
        largest_bytes=largest_bytes,
        last_bytes=largest_bytes // LAST_BUCKET_DIVISOR if on_thread else None,
        overlaps=overlaps,
        on_thread=on_thread,
        has_hooks=has_hooks,
    )


def choose_algorithm(world: World, count: int, dtype: DType, method: Method) -> Algorithm:
    """Return the algorithm that sums an uncompressed bucket of `count` values."""
    return choose_all_reduce(
        count * dtype.itemsize,
        dtype,
        topology=world.group.topology,
        requested=world.settings.all_reduce if method == "auto" else method,
        is_native=is_native(dtype),
    ).algorithm


def largest_bytes_of(world: World, whole: int, *, overlaps: bool) -> int:
    """Return the bytes of the largest bucket of gradients of `whole` bytes."""
    if world.on_one_node:
        return largest_bucket_bytes(world.size, world.settings.cache_bytes)
    return network_bucket_bytes(world.link or UNKNOWN_LINK) if overlaps else whole


def _make_flat(world: World, parameters: Sequence[Tensor], method: Method) -> GradReducer:
    if method == "shared" or (method == "auto" and world.on_one_node):
        reducer = SharedGradReducer.join(world, parameters)
        if reducer is not None:
            return reducer
        if method == "shared":
            raise _cannot_share("the kernels are not compiled, or there is no memory to share")
    count, dtype = sum(p.numel() for p in parameters), dtype_of(parameters[0].dtype)
    algorithm = choose_algorithm(world, count, dtype, method)
    return MessageGradReducer(parameters, world, algorithm, None if method == "auto" else method)


def _check(world: World, method: Method) -> None:
    if method == "library" and world.link is not None:
        raise ValueError("the emulated link does not slow the MPI library's own all-reduce")
    if method == "shared" and not world.on_one_node:
        on_this = f"{world.local_size} of {world.size} on this one"
        raise _cannot_share(f"the ranks are on several nodes ({on_this})")
    if method == "shared" and world.size == 1:
        raise _cannot_share("there is one rank")


def _cannot_share(reason: str) -> ValueError:
    return ValueError(f"the shared all-reduce cannot be used: {reason}")
