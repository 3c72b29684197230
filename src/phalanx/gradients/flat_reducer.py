"""Reduction of all gradients as one flat vector, after the backward pass."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from phalanx.comm.collective import AlgorithmOption
from phalanx.comm.collectives.expected_traffic import expected_traffic_if_known
from phalanx.comm.layout import chunks, starts_of
from phalanx.comm.select import Algorithm
from phalanx.comm.traffic import Traffic, sum_traffic
from phalanx.comm.world import World
from phalanx.gradients.flat_grad_buffer import FlatGradBuffer
from phalanx.gradients.reducer import (
    GradReducer,
    ReduceTimes,
    dense_gradient,
    give_views,
    layouts_of,
    own_gradients,
)
from phalanx.torch_backend.tensors import buffer_of

LIBRARY_CHUNK_BYTES = 4 * 2**20
"""Of a library's all-reduce: far longer than a call's fixed cost, far below its limit of 2³¹."""


class SummedVector(Protocol):
    """Vector of the sums over the ranks."""

    name: str

    @property
    def carried(self) -> NDArray[np.float64] | None:
        """As `GradReducer.carried`."""

    @property
    def traffic(self) -> Traffic | None:
        """Traffic of this rank in one reduction; None where no formula says."""

    def reduce(self, parameters: Sequence[Tensor]) -> tuple[list[Tensor], bool | None]:
        """Make every `grad` the sum over the ranks, in memory that nobody else sees. Collective.

        Returns: the sums, in as few tensors as there are, and whether all of them are finite; None
            where they were not checked.
        """

    def close(self) -> None: ...


class FlatGradReducer(GradReducer):
    """Reducer of one vector; after a block every `grad` is a sum of that block alone, in memory of
    the rank's own: it may be changed, kept and dropped.
    """

    def __init__(self, parameters: Sequence[Tensor], vector: SummedVector) -> None:
        super().__init__(parameters)
        self._vector, self.carried = vector, vector.carried
        self._is_finite: bool | None = None
        self._sums: list[Tensor] = []

    @property
    def name(self) -> str:
        return self._vector.name

    def flush(self) -> None:
        began = time.perf_counter()
        self._sums = []
        self._sums, self._is_finite = self._vector.reduce(self._parameters)
        self.times = ReduceTimes(time.perf_counter() - began)

    def sums(self) -> list[Tensor]:
        return self._sums

    def is_finite(self) -> bool:
        return super().is_finite() if self._is_finite is None else self._is_finite

    def expected_traffic(self) -> Traffic | None:
        return self._vector.traffic

    def close(self) -> None:
        self._vector.close()


class SharedVector:
    """Vector in memory that the ranks of the node share: each sums its share of it for all."""

    name = "shared"

    def __init__(self, buffer: FlatGradBuffer) -> None:
        """buffer: with one vector, for the sums."""
        self._buffer, self.traffic, self.carried = buffer, buffer.traffic, buffer.carried

    @classmethod
    def join(cls, world: World, parameters: Sequence[Tensor]) -> SharedVector | None:
        """None, on all ranks, where they have no such memory or no kernels. Collective."""
        sizes = [parameter.numel() for parameter in parameters]
        starts = starts_of(sizes)
        buffer = FlatGradBuffer.join(
            world,
            sizes,
            parameters[0].detach().numpy().dtype,
            starts=starts[:-1],
            num_elements=starts[-1],
            num_vectors=1,
        )
        return None if buffer is None else cls(buffer)

    def reduce(self, parameters: Sequence[Tensor]) -> tuple[list[Tensor], bool]:
        gradients = own_gradients(parameters)
        addresses = [gradient.data_ptr() for gradient in gradients]
        is_finite = self._buffer.all_reduce(addresses, in_place=True)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        return gradients, is_finite

    def close(self) -> None:
        self._buffer.close()


class MessageVector:
    """Vector of this rank's own, reduced by the group: any number of nodes."""

    carried: NDArray[np.float64] | None = None

    def __init__(
        self,
        world: World,
        parameters: Sequence[Tensor],
        algorithm: Algorithm,
        requested: AlgorithmOption | None,
    ) -> None:
        """algorithm: that of the vector; requested: None where the group itself chooses it."""
        self.name: str = algorithm
        self._group, self._requested = world.group, requested
        self._layouts = layouts_of(parameters)
        count, itemsize = sum(p.numel() for p in parameters), parameters[0].itemsize
        self._num_elements = count
        longest = LIBRARY_CHUNK_BYTES // itemsize if algorithm == "library" else max(count, 1)
        self._chunks = list(chunks(count, longest))
        nodes = world.group.topology.num_nodes
        known = [
            expected_traffic_if_known(
                algorithm, cut.stop - cut.start, itemsize, world.rank, world.size, num_nodes=nodes
            )
            for cut in self._chunks
        ]
        certain = [traffic for traffic in known if traffic is not None]
        self.traffic = sum_traffic(certain) if len(certain) == len(known) else None

    def reduce(self, parameters: Sequence[Tensor]) -> tuple[list[Tensor], None]:
        gradients = [dense_gradient(parameter) for parameter in parameters]
        total = gradients[0].new_empty(self._num_elements)
        for layout, gradient in zip(self._layouts, gradients, strict=True):
            total.as_strided(*layout).copy_(gradient)
        for cut in self._chunks:
            self._group.all_reduce(buffer_of(total[cut]), algorithm=self._requested)
        give_views(parameters, total, self._layouts)
        return [total], None

    def close(self) -> None:
        """Do nothing: the memory is the process's own."""


class LocalGradients(GradReducer):
    """Reducer of a single rank: its own gradients are the sums."""

    def __init__(self, parameters: Sequence[Tensor], name: str) -> None:
        super().__init__(parameters)
        self._name, self.carried = name, np.zeros(2)

    @property
    def name(self) -> str:
        return self._name

    def flush(self) -> None:
        for parameter in self._parameters:
            parameter.grad = dense_gradient(parameter)

    def expected_traffic(self) -> Traffic:
        return Traffic(0, 0, 0)
