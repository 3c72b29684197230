"""Ways to sum the gradients of replicas: values, which make the reducer of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from phalanx.comm.dtypes import dtype_of
from phalanx.comm.world import World
from phalanx.errors import UserError
from phalanx.gradients.bucketed_reducer import BucketedGradReducer, Method, choose_algorithm
from phalanx.gradients.buckets import overlaps_by_default
from phalanx.gradients.compression.compressor import Compressor, Uncompressed
from phalanx.gradients.flat_reducer import MessageGradReducer, SharedGradReducer
from phalanx.gradients.reducer import GradReducer


@dataclass(frozen=True, kw_only=True)
class AllReduce:
    """Sum over the ranks: of buckets where gradients are compressed, summed during the backward
    pass or of several types, else of one flat vector; one process sums nothing.

    The flat one takes shared memory when all ranks are on one node, and the algorithm that the
    group chooses for its length otherwise. naive, direct, ring, tree, halving: on messages, also
    within a node.
    """

    micro_batches: ClassVar[None] = None
    method: Method = "auto"
    compressor: Compressor | None = None
    """Compressor of one run; None: none."""
    overlap: Literal["auto", "on", "off"] = "auto"
    """`auto` sums during the backward pass where a network carries the gradients."""
    bucket_bytes: int | None = None
    """Bytes of a bucketed reducer's largest bucket; None: as cache and network allow."""

    def make(self, parameters: Sequence[Tensor], world: World | None) -> GradReducer:
        """Return the reducer of this rank. world: None for one process. Collective.

        Raises: UserError when the ranks cannot sum by `method`.
        """
        if world is None:
            return GradReducer(parameters)
        try:
            return self._of_ranks(parameters, world)
        except ValueError as error:
            raise UserError(f"--all-reduce {self.method}: {error}; leave it out") from error

    def _of_ranks(self, parameters: Sequence[Tensor], world: World) -> GradReducer:
        _check(world, self.method)
        hides = self.overlap == "on"
        if self.overlap == "auto":
            hides = overlaps_by_default(world.size, on_one_node=world.on_one_node)
        overlaps, compressor = hides and world.size > 1, self.compressor or Uncompressed()
        is_flat = isinstance(compressor, Uncompressed) and len({p.dtype for p in parameters}) == 1
        if overlaps or not is_flat:
            return BucketedGradReducer(
                world,
                parameters,
                compressor,
                method=self.method,
                bucket_bytes=self.bucket_bytes,
                overlaps=overlaps,
            )
        return _make_flat(world, parameters, self.method)


@dataclass(frozen=True, kw_only=True)
class FixedTree:
    """Sum over micro-batches in the order of a fixed tree: the same bits on any number of ranks."""

    micro_batches: int
    """Micro-batches of a full global batch."""
    overlaps: bool = False
    """True if gradients are summed while the last backward pass of a step runs."""


def _make_flat(world: World, parameters: Sequence[Tensor], method: Method) -> GradReducer:
    if method == "shared" or (method == "auto" and world.on_one_node):
        reducer = SharedGradReducer.join(world, parameters)
        if reducer is not None:
            return reducer
        if method == "shared":
            raise _cannot_share("the kernels are not compiled, or shared memory is missing")
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
