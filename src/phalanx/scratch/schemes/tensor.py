"""Tensor parallel: every rank sees all samples, and has a part of every layer (`cut.py` says
which). Here activations travel, not gradients of parameters.

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
from phalanx.scratch.cut import Cut
from phalanx.scratch.initial import initial_bias, initial_weight
from phalanx.scratch.modules import Linear, Module
from phalanx.scratch.momentum import Momentum
from phalanx.scratch.network import Activation, Sequential, activation_of, name_of
from phalanx.scratch.schemes.alone import Alone


class Exchange:
    """Talks to the other ranks, and counts how long that takes."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.waited_s = 0.0

    def add_up(self, matrix: Array) -> None:
        """Sum over all ranks, in place."""
        began = time.perf_counter()
        self.group.all_reduce(Buffer.of(matrix))
        self.waited_s += time.perf_counter() - began

    def collect(self, parts: Sequence[Array]) -> None:
        """parts[rank] becomes what that rank has there."""
        began = time.perf_counter()
        buffers = [Buffer.of(part) for part in parts]
        self.group.all_gather(buffers, buffers[self.group.rank])
        self.waited_s += time.perf_counter() - began


class ColumnLinear(Linear):
    """Some outputs, from all inputs. Forward, nobody needs to be asked. Backward, each rank knows
    how the loss changes with the inputs *through its own outputs*: the sum is the answer."""

    def __init__(
        self, name: str, weight: Array, bias: Array, exchange: Exchange, *, is_first: bool
    ) -> None:
        super().__init__(name, weight, bias, weight.dtype, is_first=is_first)
        self.exchange = exchange

    def backward(self, gradient: Array) -> Array:
        by_inputs = super().backward(gradient)
        if not self.is_first:
            self.exchange.add_up(by_inputs)
        return by_inputs


class RowLinear(Linear):
    """All outputs, from some inputs: each a part of a sum over all inputs. Backward, the gradient
    by the outputs is known to all, and that by the own inputs follows from it."""

    def __init__(
        self, name: str, weight: Array, bias: Array, exchange: Exchange, *, is_first: bool
    ) -> None:
        super().__init__(name, weight, bias, weight.dtype, is_first=is_first)
        self.exchange = exchange

    def forward(self, inputs: Array) -> Array:
        outputs = self.product(inputs)
        self.exchange.add_up(outputs)
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
        exchange: Exchange,
        num_inputs: int,
        *,
        is_first: bool,
    ) -> None:
        super().__init__(name, weight, bias, exchange, is_first=is_first)
        size = exchange.group.size
        self._shares = [share_of(rank, size, num_inputs) for rank in range(size)]
        self._parts = [Rows(len(share), weight.dtype) for share in self._shares]
        self._whole = Rows(num_inputs, weight.dtype)

    def forward(self, inputs: Array) -> Array:
        mine = self._shares[self.exchange.group.rank]
        return super().forward(inputs[:, mine.start : mine.stop])

    def backward(self, gradient: Array) -> Array:
        by_mine = super().backward(gradient)
        if self.is_first:
            return by_mine
        parts = [memory.of(len(gradient)) for memory in self._parts]
        parts[self.exchange.group.rank][...] = by_mine
        self.exchange.collect(parts)
        return np.concatenate(parts, axis=1, out=self._whole.of(len(gradient)))


def tensor_network(
    cuts: Sequence[Cut], activation: Activation, exchange: Exchange, *, seed: int, dtype: DTypeLike
) -> Sequential:
    """This rank's part of the network that `multilayer` makes whole."""
    rank = exchange.group.rank
    modules: list[Module] = []
    for number, cut in enumerate(cuts):
        if number > 0:
            before = cuts[number - 1]
            width = len(before.columns(rank))
            modules.append(activation_of(activation, width, dtype))
        modules.append(_layer(number, cut, exchange, seed=seed, dtype=dtype))
    return Sequential(modules, dtype)


def _layer(number: int, cut: Cut, exchange: Exchange, *, seed: int, dtype: DTypeLike) -> Linear:
    name, rank, is_first = name_of(number), exchange.group.rank, number == 0
    rows, columns = cut.rows(rank), cut.columns(rank)
    weight = initial_weight(cut.inputs, cut.outputs, seed=seed, name=name).astype(dtype)
    bias = initial_bias(cut.inputs, cut.outputs, seed=seed, name=name).astype(dtype)
    weight = weight[rows.start : rows.stop, columns.start : columns.stop].copy()
    bias = bias[columns.start : columns.stop]
    if cut.kind == "columns":
        return ColumnLinear(name, weight, bias, exchange, is_first=is_first)
    if cut.kind == "rows":
        return RowLinear(name, weight, bias, exchange, is_first=is_first)
    return WholeInputsRowLinear(name, weight, bias, exchange, cut.inputs, is_first=is_first)


class Tensor(Alone):
    """All samples, a part of the parameters. `combine` has nothing to do: each rank's gradients
    are those of the parameters that it alone has, or that all update alike."""

    def __init__(
        self, network: Sequential, optimizer: Momentum, exchange: Exchange, cuts: Sequence[Cut]
    ) -> None:
        super().__init__(network, optimizer)
        self.exchange, self.cuts = exchange, cuts

    @property
    def waited_s(self) -> float:
        return self.exchange.waited_s

    def counts(self, batch: range) -> slice:
        """All ranks come to the same losses; each reports a share of them."""
        share = share_of(self.exchange.group.rank, self.exchange.group.size, len(batch))
        return slice(share.start, share.stop)

    def whole(self) -> Array:
        group, mine = self.exchange.group, self.network.parameters
        held = [
            np.empty(sum(cut.size(rank) for cut in self.cuts), mine.dtype)
            for rank in range(group.size)
        ]
        held[group.rank][...] = mine
        group.all_gather([Buffer.of(part) for part in held], Buffer.of(held[group.rank]))
        return assemble(self.cuts, held)


def assemble(cuts: Sequence[Cut], held: Sequence[Array]) -> Array:
    """The parameters in the order of one process, from those of each rank."""
    sizes = [(cut.inputs + 1) * cut.outputs for cut in cuts]
    whole = np.empty(sum(sizes), held[0].dtype)
    for rank, values in enumerate(held):
        starts = starts_of([cut.size(rank) for cut in cuts])
        for cut, target, start in zip(cuts, starts_of(sizes), starts, strict=False):
            rows, columns = cut.rows(rank), cut.columns(rank)
            num_weights = len(rows) * len(columns)
            weight, bias = np.split(values[start : start + cut.size(rank)], [num_weights])
            layer = whole[target : target + (cut.inputs + 1) * cut.outputs]
            matrix = layer[: cut.inputs * cut.outputs].reshape(cut.inputs, cut.outputs)
            matrix[rows.start : rows.stop, columns.start : columns.stop] = weight.reshape(
                len(rows), len(columns)
            )
            layer[cut.inputs * cut.outputs :][columns.start : columns.stop] = bias
    return whole
