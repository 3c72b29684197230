"""Fused optimizer step: parameters shared within a node, each slice updated by its owner.

All-reduce and optimizer become one pass: a rank sums the gradients of its slice and updates the
slice at once. No sums are written, and parameters and optimizer state exist once per node instead
of once per rank. The memory is released however the ranks end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from phalanx.comm.layout import CACHE_LINE_BYTES
from phalanx.comm.traffic import Traffic
from phalanx.comm.world import World
from phalanx.gradients.flat_grad_buffer import FlatGradBuffer
from phalanx.gradients.optimizer_update import STATE_NAMES, OptimizerConfig

Array = NDArray[Any]


class FusedOptimizerStep:
    """Parameters of fixed sizes, in memory that all ranks see, which are on one node."""

    name = "fused"
    num_scratch_vectors = 0
    """Vectors of the buffer before that of the parameters."""

    def __init__(
        self,
        world: World,  # noqa: ARG002
        buffer: FlatGradBuffer,
        rule: OptimizerConfig,
        sizes: Sequence[int],
        dtype: DTypeLike,
    ) -> None:
        """buffer: with the scratch vectors, one for the parameters and one for each state."""
        self.rule, self.sizes, self.dtype = rule, tuple(sizes), np.dtype(dtype)
        self.num_bytes = sum(sizes) * self.dtype.itemsize
        self._buffer = buffer
        self.carried: Array | None = buffer.carried
        """Numbers of this rank, as `GradReducer.carried`."""
        quantities = [
            [vector[start : start + size] for start, size in zip(buffer.starts, sizes, strict=True)]
            for vector in buffer.vectors[self.num_scratch_vectors :]
        ]
        self.parameters: list[Array] = quantities[0]
        """(sizes[i],) each; zeros at first. Each begins on a cache line."""
        self.states: dict[str, list[Array]] = dict(
            zip(STATE_NAMES[rule.kind], quantities[1:], strict=True)
        )
        """The same of each quantity that the optimizer keeps, by torch.optim's names."""

    @classmethod
    def join(
        cls, world: World, rule: OptimizerConfig, sizes: Sequence[int], dtype: DTypeLike
    ) -> Self | None:
        """None, on all ranks, where they have no memory to share or no kernels. dtype: float32 or
        float64. Collective."""
        buffer = FlatGradBuffer.join(
            world,
            sizes,
            dtype,
            alignment=CACHE_LINE_BYTES // np.dtype(dtype).itemsize,
            num_vectors=cls.num_scratch_vectors + 1 + len(STATE_NAMES[rule.kind]),
            guarded=True,
        )
        if not world.on_one_node:  # ranks of another node may lack it
            num_without = np.array([buffer is None], np.int64)
            world.all_reduce(num_without)
            if num_without[0]:
                return None
        return None if buffer is None else cls(world, buffer, rule, sizes, dtype)

    def traffic_formula(self) -> str:
        """Return the formula of what a rank sends and receives in a step, to be read."""
        return f"2(p−1)/p · {self.dtype.itemsize}Ψ"

    def expected_traffic(self) -> Traffic | None:
        """Return what this rank sends and receives in a step: gradients of peers' shares,
        parameters of its own; None where nothing is known of it."""
        return self._buffer.traffic

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
        coefficients = self.rule.coefficients(learning_rate, step)
        return self._buffer.fused_step(addresses, self.rule.kind, coefficients)

    def close(self) -> None:
        """The arrays must not be used any more. Collective."""
        self.parameters.clear()
        self.states.clear()
        self._buffer.close()
