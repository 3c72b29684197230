"""Construction of the reducer that fits the ranks' placement."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from phalanx.comm.dtypes import dtype_of
from phalanx.comm.world import World
from phalanx.gradients.bucketed_reducer import BucketedGradReducer, Method, choose_algorithm
from phalanx.gradients.compression.compressor import Compressor, Uncompressed
from phalanx.gradients.flat_reducer import MessageGradReducer, SharedGradReducer
from phalanx.gradients.reducer import GradReducer


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
        return BucketedGradReducer(
            world,
            parameters,
            compressor,
            method=method,
            bucket_bytes=bucket_bytes,
            overlaps=overlaps,
        )
    return _make_flat(world, parameters, method)


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
