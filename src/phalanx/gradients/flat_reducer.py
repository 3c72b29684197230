"""Reduction of all gradients as one flat vector, after the backward pass."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from phalanx.comm.collective import AlgorithmOption
from phalanx.comm.collectives.expected_traffic import expected_traffic_if_known
from phalanx.comm.layout import chunks, starts_of
from phalanx.comm.select import Algorithm
from phalanx.comm.traffic import Traffic, sum_traffic
from phalanx.comm.world import World
from phalanx.gradients.flat_grad_buffer import FlatGradBuffer
from phalanx.gradients.reducer import GradReducer, ReduceTimes, dense_gradient
from phalanx.torch_backend.tensors import buffer_of

LIBRARY_CHUNK_BYTES = 4 * 2**20
"""Of a library's all-reduce: far longer than a call's fixed cost, far below its limit of 2³¹."""


class SummedVector(Protocol):
    """Vector of the sums over the ranks."""

    name: str

    @property
    def traffic(self) -> Traffic | None:
        """Traffic of this rank in one reduction; None where no formula says."""

    @property
    def total(self) -> Tensor:
        """(n,): the sums of the last reduction, the same bytes on every rank."""

    def reduce(self, gradients: Sequence[Tensor]) -> bool | None:
        """Sum contiguous gradients, one after the other in the vector. Collective.

        Returns: whether all sums are finite; None where they were not checked.
        """

    def close(self) -> None: ...


class FlatGradReducer(GradReducer):
    """Reducer of one vector; after a block every `grad` is a view of its sums.

    Where ranks share the sums they must not be changed in place.
    """

    def __init__(self, parameters: Sequence[Tensor], vector: SummedVector) -> None:
        super().__init__(parameters)
        self._vector = vector
        self._is_finite: bool | None = None
        starts = starts_of([parameter.numel() for parameter in self._parameters])
        self._views = [
            vector.total[start : start + parameter.numel()].view_as(parameter)
            for parameter, start in zip(self._parameters, starts, strict=False)
        ]

    @property
    def name(self) -> str:
        return self._vector.name

    def flush(self) -> None:
        began = time.perf_counter()
        gradients = [dense_gradient(parameter) for parameter in self._parameters]
        self._is_finite = self._vector.reduce(gradients)
        for parameter, view in zip(self._parameters, self._views, strict=True):
            parameter.grad = view
        self.times = ReduceTimes(time.perf_counter() - began)

    def sums(self) -> list[Tensor]:
        return [self._vector.total]

    def is_finite(self) -> bool:
        return super().is_finite() if self._is_finite is None else self._is_finite

    def expected_traffic(self) -> Traffic | None:
        return self._vector.traffic

    def close(self) -> None:
        super().close()
        self._views.clear()
        self._vector.close()


class SharedVector:
    """Vector in memory that the ranks of the node share: all read the sums from one place."""

    name = "shared"

    def __init__(self, buffer: FlatGradBuffer) -> None:
        """buffer: with one vector, for the sums."""
        self._buffer, self.traffic = buffer, buffer.traffic

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

    @property
    def total(self) -> Tensor:
        return torch.from_numpy(self._buffer.vectors[0])

    def reduce(self, gradients: Sequence[Tensor]) -> bool:
        return self._buffer.all_reduce([gradient.data_ptr() for gradient in gradients])

    def close(self) -> None:
        self._buffer.close()


class MessageVector:
    """Vector of this rank's own, reduced by the group: any number of nodes."""

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
        sizes = [parameter.numel() for parameter in parameters]
        self.total = torch.zeros(sum(sizes), dtype=parameters[0].dtype)
        self._parts = self.total.split(sizes)
        count, itemsize = len(self.total), self.total.itemsize
        longest = LIBRARY_CHUNK_BYTES // itemsize if algorithm == "library" else max(count, 1)
        self._chunks = [self.total[cut] for cut in chunks(count, longest)]
        nodes = world.group.topology.num_nodes
        known = [
            expected_traffic_if_known(
                algorithm, len(chunk), itemsize, world.rank, world.size, num_nodes=nodes
            )
            for chunk in self._chunks
        ]
        certain = [traffic for traffic in known if traffic is not None]
        self.traffic = sum_traffic(certain) if len(certain) == len(known) else None

    def reduce(self, gradients: Sequence[Tensor]) -> None:
        for part, gradient in zip(self._parts, gradients, strict=True):
            part.copy_(gradient.view(-1))
        for chunk in self._chunks:
            self._group.all_reduce(buffer_of(chunk), algorithm=self._requested)

    def close(self) -> None:
        """Do nothing: the memory is the process's own."""


class LocalGradients(GradReducer):
    """Reducer of a single rank: its own gradients are the sums."""

    def __init__(self, parameters: Sequence[Tensor], name: str) -> None:
        super().__init__(parameters)
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    def flush(self) -> None:
        for parameter in self._parameters:
            parameter.grad = dense_gradient(parameter)

    def expected_traffic(self) -> Traffic:
        return Traffic(0, 0, 0)
