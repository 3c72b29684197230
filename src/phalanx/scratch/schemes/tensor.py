"""Tensor parallel: every rank sees all samples, and has a shard of every layer (`partition.py`).

Here activations travel, not gradients of parameters.

Source: Shoeybi et al. 2019, "Megatron-LM", arXiv:1909.08053, section 3.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike

from phalanx.comm.buffer import Buffer
from phalanx.comm.group import Group
from phalanx.comm.layout import share_of, starts_of
from phalanx.scratch.arrays import Array, Rows
from phalanx.scratch.initial import initial_bias, initial_weight
from phalanx.scratch.modules import Linear, Module
from phalanx.scratch.momentum import Momentum
from phalanx.scratch.network import Activation, FeedForwardNetwork, activation_of, layer_name
from phalanx.scratch.partition import LayerPartition
from phalanx.scratch.schemes.single_process import SingleProcess


class TensorCommunicator:
    """Collectives of the tensor scheme, with the time spent waiting for them."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.waited_s = 0.0

    def all_reduce(self, matrix: Array) -> None:
        """Sum over all ranks, in place."""
        began = time.perf_counter()
        self.group.all_reduce(Buffer.of(matrix))
        self.waited_s += time.perf_counter() - began

    def all_gather(self, parts: Sequence[Array]) -> None:
        """Gather `parts[rank]` from every rank, in place."""
        began = time.perf_counter()
        buffers = [Buffer.of(part) for part in parts]
        self.group.all_gather(buffers, buffers[self.group.rank])
        self.waited_s += time.perf_counter() - began


class SplitLinear(Linear):
    """A shard of a layer; `communicator` reaches the ranks that have the others."""

    def __init__(
        self,
        name: str,
        weight: Array,
        bias: Array,
        communicator: TensorCommunicator,
        *,
        is_first: bool,
    ) -> None:
        super().__init__(name, weight, bias, weight.dtype, is_first=is_first)
        self.communicator = communicator


class ColumnLinear(SplitLinear):
    """Some outputs, from all inputs. Forward, nobody needs to be asked. Backward, each rank knows
    how the loss changes with the inputs *through its own outputs*: the sum is the answer."""

    def backward(self, gradient: Array) -> Array:
        by_inputs = super().backward(gradient)
        if not self.is_first:
            self.communicator.all_reduce(by_inputs)
        return by_inputs


class RowLinear(SplitLinear):
    """All outputs, from some inputs: each a part of a sum over all inputs. Backward, the gradient
    by the outputs is known to all, and that by the own inputs follows from it."""

    def forward(self, inputs: Array) -> Array:
        outputs = self.product(inputs)
        self.communicator.all_reduce(outputs)
        outputs += self.bias.value  # after the sum, or it would count once a rank
        return outputs


class WholeInputsRowLinear(RowLinear):
    """The same where all ranks have all inputs: take the own ones, give back the gradient by
    all of them."""

    def __init__(
        self,
        name: str,
        weight: Array,
        bias: Array,
        communicator: TensorCommunicator,
        num_inputs: int,
        *,
        is_first: bool,
    ) -> None:
        super().__init__(name, weight, bias, communicator, is_first=is_first)
        size = communicator.group.size
        self._shares = [share_of(rank, size, num_inputs) for rank in range(size)]
        self._parts = [Rows(len(share), weight.dtype) for share in self._shares]
        self._whole = Rows(num_inputs, weight.dtype)

    def forward(self, inputs: Array) -> Array:
        mine = self._shares[self.communicator.group.rank]
        return super().forward(inputs[:, mine.start : mine.stop])

    def backward(self, gradient: Array) -> Array:
        by_mine = super().backward(gradient)
        if self.is_first:
            return by_mine
        parts = [memory.of(len(gradient)) for memory in self._parts]
        parts[self.communicator.group.rank][...] = by_mine
        self.communicator.all_gather(parts)
        return np.concatenate(parts, axis=1, out=self._whole.of(len(gradient)))


def tensor_network(
    partitions: Sequence[LayerPartition],
    activation: Activation,
    communicator: TensorCommunicator,
    *,
    seed: int,
    dtype: DTypeLike,
) -> FeedForwardNetwork:
    """This rank's part of the network that `multilayer` makes whole."""
    rank = communicator.group.rank
    modules: list[Module] = []
    for number, partition in enumerate(partitions):
        if number > 0:
            before = partitions[number - 1]
            width = len(before.columns(rank))
            modules.append(activation_of(activation, width, dtype))
        modules.append(_layer(number, partition, communicator, seed=seed, dtype=dtype))
    return FeedForwardNetwork(modules, dtype)


def _layer(
    number: int,
    partition: LayerPartition,
    communicator: TensorCommunicator,
    *,
    seed: int,
    dtype: DTypeLike,
) -> Linear:
    name, rank, is_first = layer_name(number), communicator.group.rank, number == 0
    rows, columns = partition.rows(rank), partition.columns(rank)
    weight = initial_weight(partition.inputs, partition.outputs, seed=seed, name=name).astype(dtype)
    bias = initial_bias(partition.inputs, partition.outputs, seed=seed, name=name).astype(dtype)
    weight = weight[rows.start : rows.stop, columns.start : columns.stop].copy()
    bias = bias[columns.start : columns.stop]
    if partition.kind == "columns":
        return ColumnLinear(name, weight, bias, communicator, is_first=is_first)
    if partition.kind == "rows":
        return RowLinear(name, weight, bias, communicator, is_first=is_first)
    return WholeInputsRowLinear(
        name, weight, bias, communicator, partition.inputs, is_first=is_first
    )


class Tensor(SingleProcess):
    """All samples, a part of the parameters. `combine` has nothing to do: each rank's gradients
    are those of the parameters that it alone has, or that all update alike."""

    def __init__(
        self,
        network: FeedForwardNetwork,
        optimizer: Momentum,
        communicator: TensorCommunicator,
        partitions: Sequence[LayerPartition],
    ) -> None:
        super().__init__(network, optimizer)
        self.communicator, self.partitions = communicator, partitions

    @property
    def waited_s(self) -> float:
        return self.communicator.waited_s

    def reported(self, batch: range) -> slice:
        """Return this rank's share of the samples; all ranks compute the same losses."""
        share = share_of(self.communicator.group.rank, self.communicator.group.size, len(batch))
        return slice(share.start, share.stop)

    def full_parameters(self) -> Array:
        group, mine = self.communicator.group, self.network.parameters
        shards = [
            np.empty(sum(partition.size(rank) for partition in self.partitions), mine.dtype)
            for rank in range(group.size)
        ]
        shards[group.rank][...] = mine
        group.all_gather([Buffer.of(part) for part in shards], Buffer.of(shards[group.rank]))
        return assemble(self.partitions, shards)


def assemble(partitions: Sequence[LayerPartition], shards: Sequence[Array]) -> Array:
    """The parameters in the order of one process, from those of each rank."""
    sizes = [(partition.inputs + 1) * partition.outputs for partition in partitions]
    whole = np.empty(sum(sizes), shards[0].dtype)
    for rank, values in enumerate(shards):
        starts = starts_of([partition.size(rank) for partition in partitions])
        for partition, target, start in zip(partitions, starts_of(sizes), starts, strict=False):
            rows, columns = partition.rows(rank), partition.columns(rank)
            num_weights = len(rows) * len(columns)
            weight, bias = np.split(values[start : start + partition.size(rank)], [num_weights])
            layer = whole[target : target + (partition.inputs + 1) * partition.outputs]
            matrix = layer[: partition.inputs * partition.outputs].reshape(
                partition.inputs, partition.outputs
            )
            matrix[rows.start : rows.stop, columns.start : columns.stop] = weight.reshape(
                len(rows), len(columns)
            )
            layer[partition.inputs * partition.outputs :][columns.start : columns.stop] = bias
    return whole
