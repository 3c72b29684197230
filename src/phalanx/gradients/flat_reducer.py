"""Reduction of all gradients as one flat vector, after the backward pass."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Self

from torch import Tensor

from phalanx.comm.collective import AlgorithmOption
from phalanx.comm.collectives.expected_traffic import expected_traffic
from phalanx.comm.layout import chunks
from phalanx.comm.select import Algorithm
from phalanx.comm.traffic import Traffic, sum_traffic
from phalanx.comm.world import World
from phalanx.gradients.flat_grad_buffer import FlatGradBuffer
from phalanx.gradients.reducer import (
    GradReducer,
    ReduceTimes,
    SummedLoss,
    dense_gradient,
    give_views,
    layouts_of,
    own_gradients,
)
from phalanx.torch_backend.tensors import buffer_of

LIBRARY_CHUNK_BYTES = 4 * 2**20
"""Bytes of one library call: far more than its fixed cost, far below the limit of 2³¹."""


class SharedGradReducer(GradReducer):
    """Reducer in memory that the ranks of the node share: each sums its share of a vector for all.

    A gradient becomes the sum where it is, in memory of the rank's own.
    """

    name = "shared"
    sums_losses = True

    def __init__(self, parameters: Sequence[Tensor], buffer: FlatGradBuffer) -> None:
        """buffer: with one vector, for the sums."""
        super().__init__(parameters)
        self._buffer = buffer
        self._is_finite = True

    @classmethod
    def join(cls, world: World, parameters: Sequence[Tensor]) -> Self | None:
        """None, on all ranks, where they have no such memory or no kernels. Collective."""
        sizes = [parameter.numel() for parameter in parameters]
        dtype = parameters[0].detach().numpy().dtype
        buffer = FlatGradBuffer.join(world, sizes, dtype, num_vectors=1)
        return None if buffer is None else cls(parameters, buffer)

    def flush(self) -> None:
        began = time.perf_counter()
        gradients = own_gradients(self._parameters)
        addresses = [gradient.data_ptr() for gradient in gradients]
        carried = self._buffer.carried
        carried[:] = self._take_noted()[:2]
        self._is_finite = self._buffer.all_reduce(addresses, in_place=True)
        self.summed = SummedLoss(*carried.tolist())
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
        self.times = ReduceTimes(time.perf_counter() - began)

    def is_finite(self) -> bool:
        return self._is_finite

    def expected_traffic(self) -> Traffic:
        return self._buffer.traffic

    def close(self) -> None:
        self._buffer.close()


class MessageGradReducer(GradReducer):
    """Reducer of a vector of this rank's own, which the group sums: any number of nodes.

    Every gradient becomes a view of a vector of the block's own.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        world: World,
        algorithm: Algorithm,
        requested: AlgorithmOption | None,
    ) -> None:
        """algorithm: that of the vector; requested: None where the group itself chooses it."""
        super().__init__(parameters)
        self._algorithm, self._group, self._requested = algorithm, world.group, requested
        self._layouts = layouts_of(parameters)
        self._num_elements = count = sum(p.numel() for p in parameters)
        itemsize, nodes = parameters[0].itemsize, world.group.topology.nodes
        longest = LIBRARY_CHUNK_BYTES // itemsize if algorithm == "library" else max(count, 1)
        self._chunks = list(chunks(count, longest))
        counts, rank, size = [cut.stop - cut.start for cut in self._chunks], world.rank, world.size
        self._traffic = sum_traffic(
            [expected_traffic(algorithm, n, itemsize, rank, size, nodes=nodes) for n in counts]
        )
        self._sums: list[Tensor] = []

    @property
    def name(self) -> str:
        return self._algorithm

    def flush(self) -> None:
        began = time.perf_counter()
        self._sums = []  # these may be the last to have their memory
        gradients = [dense_gradient(parameter) for parameter in self._parameters]
        total = gradients[0].new_empty(self._num_elements)
        for layout, gradient in zip(self._layouts, gradients, strict=True):
            total.as_strided(*layout).copy_(gradient)
        for cut in self._chunks:
            self._group.all_reduce(buffer_of(total[cut]), algorithm=self._requested)
        give_views(self._parameters, total, self._layouts)
        self._sums = [total]
        self.times = ReduceTimes(time.perf_counter() - began)

    def sums(self) -> list[Tensor]:
        return self._sums

    def expected_traffic(self) -> Traffic:
        return self._traffic
