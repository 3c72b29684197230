"""Fused optimizer step: parameters shared within a node, each slice updated by its owner.

All-reduce and optimizer become one pass: a rank sums the gradients of its slice and updates the
slice at once. No sums are written, and parameters and optimizer state exist once per node instead
of once per rank.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from phalanx.comm.buffer import Buffer
from phalanx.comm.dtypes import DTYPES
from phalanx.comm.layout import CACHE_LINE_BYTES, aligned_starts_of, elements_in, share_of
from phalanx.comm.traffic import Traffic, sharded_all_reduce_traffic
from phalanx.comm.window import Window
from phalanx.comm.world import World
from phalanx.gradients.flat_grad_buffer import FlatGradBuffer
from phalanx.gradients.optimizer_update import STATE_NAMES, OptimizerConfig, apply_update
from phalanx.gradients.shared_grad_buffer import SharedGradBuffer, sum_in_order

Array = NDArray[Any]


class FusedOptimizerStep(ABC):
    """Parameters of fixed sizes, in memory that all ranks of the node see. Collective to make."""

    name: str
    parameters: list[Array]
    """(sizes[i],) each; zeros at first. In C each begins on a cache line."""
    states: dict[str, list[Array]]
    """The same of each quantity that the optimizer keeps, by torch.optim's names."""
    traffic_per_call: Traffic
    """What this rank sends (gradients of others' shares, parameters of its own) and receives in a
    step. It is added to `world.traffic`, if there is one, in every step."""

    def __init__(
        self, world: World, rule: OptimizerConfig, sizes: Sequence[int], dtype: DTypeLike
    ) -> None:
        """dtype: float32 or float64."""
        self.rule, self.sizes, self.dtype = rule, tuple(sizes), np.dtype(dtype)
        self._world, self.num_bytes = world, sum(sizes) * self.dtype.itemsize
        self._kind = rule.kind
        self._starts = aligned_starts_of(sizes, CACHE_LINE_BYTES // self.dtype.itemsize)

    @property
    def sent_bytes_per_call(self) -> int:
        """Bytes that this rank sends in a step."""
        return self.traffic_per_call.sent_bytes

    @property
    def received_bytes_per_call(self) -> int:
        """Bytes that this rank receives in a step."""
        return self.traffic_per_call.received_bytes

    @abstractmethod
    def step_at(self, addresses: Sequence[int], learning_rate: float, step: int) -> float | None:
        """Update all parameters by the sums of the gradients over the ranks, in rank order.

        If a gradient of any rank is not finite, nothing changes on any rank. The check is part of
        the pass that copies the gradients, and its result is published with the phase that ends it.

        addresses: where this rank's gradients begin, contiguous; step: counts from 1. Collective.
        Cost:    two phases. For p ranks of n bytes each copies n(p-1)/p, reads n, and reads and
                 writes n/p of parameters and of each state: with Adam (p+6)n bytes of memory
                 traffic on the node beside the copies, where all-reduce and optimizer take 9pn.
                 The check of the local slice before any write reads another n/p, in the same loop
                 as the copies.
        Returns: seconds that this rank's own slice took; the rest of the call was communication.
                 None, on all ranks: nothing has changed.
        Raises:  WaitTimeoutError naming the ranks that did not come.
        """

    @abstractmethod
    def close(self) -> None:
        """Collective. The arrays must not be used any more."""

    def _count(self) -> None:
        if (traffic := self._world.traffic) is not None:
            traffic.collective("fused_step", self.num_bytes, self.traffic_per_call)

    def _divide(self, vectors: Sequence[Array]) -> None:
        """vectors: parameters and states, (starts[-1],) each."""
        parts = [
            [
                vector[start : start + size]
                for start, size in zip(self._starts, self.sizes, strict=False)
            ]
            for vector in vectors
        ]
        self.parameters = parts[0]
        self.states = dict(zip(STATE_NAMES[self._kind], parts[1:], strict=True))


class KernelFusedStep(FusedOptimizerStep):
    """Fused step in C; nothing is left behind, however the ranks end."""

    name = "fused"
    guarded = True
    """Check gradients for non-finite values; off only to measure the cost."""

    def __init__(
        self,
        world: World,
        parts: FlatGradBuffer,
        rule: OptimizerConfig,
        sizes: Sequence[int],
        dtype: DTypeLike,
    ) -> None:
        super().__init__(world, rule, sizes, dtype)
        self._parts = parts
        self.traffic_per_call = sharded_all_reduce_traffic(
            self.num_bytes, parts.share_bytes, world.size
        )
        self._divide(parts.vectors)

    @classmethod
    def join(
        cls, world: World, rule: OptimizerConfig, sizes: Sequence[int], dtype: DTypeLike
    ) -> KernelFusedStep | None:
        """None, on all ranks, where they have no such memory or no kernels. Collective."""
        starts = aligned_starts_of(sizes, CACHE_LINE_BYTES // np.dtype(dtype).itemsize)
        parts = FlatGradBuffer.join(
            world,
            sizes,
            dtype,
            starts=starts[:-1],
            num_elements=starts[-1],
            num_vectors=1 + len(STATE_NAMES[rule.kind]),
            guarded=cls.guarded,
        )
        return None if parts is None else cls(world, parts, rule, sizes, dtype)

    def step_at(self, addresses: Sequence[int], learning_rate: float, step: int) -> float | None:
        coefficients = self.rule.coefficients(learning_rate, step)
        used_s = self._parts.fused_step(self._kind, coefficients, addresses)
        if used_s is not None:
            self._count()
        return used_s

    def close(self) -> None:
        self.parameters.clear()
        self.states.clear()
        self._parts.close()


class ArrayFusedStep(FusedOptimizerStep):
    """Fused step in windows of the MPI library, with array operations: without a compiler."""

    name = "fused arrays"

    def __init__(
        self, world: World, rule: OptimizerConfig, sizes: Sequence[int], dtype: DTypeLike
    ) -> None:
        super().__init__(world, rule, sizes, dtype)
        num_elements = self._starts[-1]
        own = share_of(world.rank, world.size, num_elements)
        own_bytes = self.dtype.itemsize * elements_in(own, self._starts[:-1], sizes)
        self.traffic_per_call = sharded_all_reduce_traffic(self.num_bytes, own_bytes, world.size)
        num_vectors = 1 + len(STATE_NAMES[self._kind])
        num_shared = num_vectors * num_elements if world.local_rank == 0 else 0
        policy, timeout_s = world.policy, world.timeout_s
        self._given = Window(world.node, num_elements, dtype, policy=policy, timeout_s=timeout_s)
        self._shared = Window(world.node, num_shared, dtype, policy=policy, timeout_s=timeout_s)
        self._bad = Window(world.node, 2, dtype, policy=policy, timeout_s=timeout_s)
        """Flags of ranks with non-finite gradients, for two rounds in turn: a rank can be ahead."""
        self._num_rounds = 0
        self._vectors = list(self._shared.arrays[0].reshape(num_vectors, num_elements))
        self._divide(self._vectors)
        self._parts = SharedGradBuffer(self._given, sizes, self._starts[:-1])

    def step_at(self, addresses: Sequence[int], learning_rate: float, step: int) -> float | None:
        coefficients = self.rule.coefficients(learning_rate, step)
        turn = self._num_rounds % 2
        self._num_rounds += 1

        def is_bad() -> bool:
            return any(flags[turn] for flags in self._bad.arrays)

        def update(where: slice, terms: list[Array]) -> None:
            if is_bad():
                return
            gradients = np.empty_like(terms[0])
            sum_in_order(terms, gradients)
            parameters, *states = [vector[where] for vector in self._vectors]
            apply_update(self._kind, coefficients, parameters, states, gradients)

        dtype = DTYPES[self.dtype.name]
        gradients = [
            Buffer(a, n, dtype).array() for a, n in zip(addresses, self.sizes, strict=True)
        ]
        finite = all(bool(np.isfinite(gradient).all()) for gradient in gradients)
        self._bad.arrays[self._world.local_rank][turn] = not finite
        for part, gradient in enumerate(gradients):
            self._parts.mark_ready(part, gradient)
        used_s = self._parts.reduce(update, "the fused step")
        if is_bad():
            return None
        self._count()
        return used_s

    def close(self) -> None:
        self.parameters.clear()
        self.states.clear()
        self._vectors.clear()
        del self._parts
        self._bad.close()
        self._shared.close()
        self._given.close()


def make_fused_step(
    world: World, rule: OptimizerConfig, sizes: Sequence[int], dtype: DTypeLike
) -> FusedOptimizerStep:
    """Make the fused step for parameters of `sizes` elements on one node. Collective."""
    assert world.on_one_node, "parameters are shared within a node"
    step = KernelFusedStep.join(world, rule, sizes, dtype)
    return ArrayFusedStep(world, rule, sizes, dtype) if step is None else step
