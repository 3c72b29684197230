"""Fused optimizer step: parameters shared within a node, each slice updated by its owner.

All-reduce and optimizer become one pass: a rank sums the gradients of its slice and updates the
slice at once. No sums are written, and parameters and optimizer state exist once per node instead
of once per rank. The memory is released however the ranks end.

With several nodes a rank sums its share over the ranks of its node, in shared memory, and
all-reduces the sums with the ranks of its place on the other nodes, its lane; then it updates its
share of the parameters of its node. All nodes do the same arithmetic on the same sums, so their
parameters keep the same bits.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from phalanx.comm import kernels
from phalanx.comm.buffer import Buffer
from phalanx.comm.collectives.expected_traffic import expected_traffic
from phalanx.comm.collectives.library import is_native
from phalanx.comm.layout import CACHE_LINE_BYTES
from phalanx.comm.node_groups import lane_group
from phalanx.comm.select import Algorithm, choose_all_reduce
from phalanx.comm.traffic import Traffic, sum_traffic
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
        """Numbers of this rank, as `FlatGradBuffer.carried`; None: this step carries none."""
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


class LaneOptimizerStep(FusedOptimizerStep):
    """Parameters of fixed sizes, in memory that the ranks of a node see, on nodes with the same
    number of ranks."""

    name = "fused lanes"
    num_scratch_vectors = 1  # the sums

    def __init__(
        self,
        world: World,
        buffer: FlatGradBuffer,
        rule: OptimizerConfig,
        sizes: Sequence[int],
        dtype: DTypeLike,
    ) -> None:
        """Collective over the lane."""
        super().__init__(world, buffer, rule, sizes, dtype)
        self._local_size = world.local_size
        self.carried = None  # a round sums them on the node alone
        own = slice(buffer.local_share.start, buffer.local_share.stop)
        self._sums, self._share, *self._states = [Buffer.of(row[own]) for row in buffer.vectors]
        self._lane = lane_group(world.group)
        self._algorithm: Algorithm = choose_all_reduce(
            self._sums.num_bytes,
            self._sums.dtype,
            topology=self._lane.topology,
            requested=world.settings.all_reduce,
            is_native=is_native(self._sums.dtype),
        ).algorithm

    def step_at(self, addresses: Sequence[int], learning_rate: float, step: int) -> float | None:
        """Update all parameters by the sums of the gradients over the ranks: in the order of the
        ranks on each node, then of the nodes.

        If a gradient of any rank, or a sum of them, is not finite, nothing changes on any node: a
        node that finds one makes its sums NaN for the others.

        addresses: where this rank's gradients begin, contiguous; step: counts from 1. Collective.
        Cost:    for m nodes of k ranks: on the node as `FusedOptimizerStep`, and n/k bytes of sums
                 written and read; between the nodes 2(m-1)/m · n/k bytes through each of k lanes.
        Returns: seconds in which this rank updated its share; the rest of the call was
                 communication. None, on all ranks: nothing has changed.
        Raises:  WaitTimeoutError naming the ranks that did not come.
        """
        buffer, module = self._buffer, kernels.compiled()
        assert module is not None, "the buffer has them"
        sums, code = self._sums, self._sums.dtype.code
        if not buffer.all_reduce(addresses):
            sums.array().fill(np.nan)
        try:
            if sums.count:
                self._lane.all_reduce(sums)
        except BaseException as error:
            buffer.fail(str(error))
            raise
        is_finite = module.are_finite([sums.address], [sums.count], code)
        if not buffer.is_true_for_all(is_finite, "the check of sums"):
            return None
        began = time.perf_counter()
        module.apply_update(
            self.rule.kind,
            self.rule.coefficients(learning_rate, step),
            self._share.address,
            [state.address for state in self._states],
            sums.address,
            sums.count,
            code,
        )
        used_s = time.perf_counter() - began
        buffer.barrier("the fused step")
        return used_s

    def expected_traffic(self) -> Traffic | None:
        """Return the same, and the sums of this rank's lane."""
        lane = expected_traffic(
            self._algorithm,
            self._sums.count,
            self._sums.dtype.itemsize,
            self._lane.rank,
            self._lane.size,
            nodes=range(self._lane.size),
        )
        return sum_traffic([self._buffer.traffic, lane])

    def traffic_formula(self) -> str:
        """k: ranks on a node, m: nodes."""
        whole = f"{self.dtype.itemsize}Ψ"
        between = "(m−1)" if self._algorithm in ("short", "bruck") else "2(m−1)/m"
        on_node = f"2(k−1)/k · {whole} + " if self._local_size > 1 else ""
        return f"{on_node}{between} · {whole}/k"

    def close(self) -> None:
        """The arrays must not be used any more. Collective."""
        self._lane.close()
        super().close()


def uneven_nodes(world: World) -> str | None:
    """Return how many ranks the nodes have where they differ, else None."""
    counts = Counter(world.group.nodes)
    if len(set(counts.values())) == 1:
        return None
    return " and ".join(str(count) for count in sorted(set(counts.values()), reverse=True))
