"""Tensor parallel: every rank sees all samples, and has a part of every layer.

Here ranks exchange activations, not gradients of parameters. Layers are cut in pairs:

    inputs ──┬── first[:, left]  ── hidden, left  ── second[left, :]  ──┐
    (all)    │                                                          ├── sum ── outputs (all)
             └── first[:, right] ── hidden, right ── second[right, :] ──┘

The first *partitions its outputs*: each rank has some columns of the weight, and computes some
outputs from all inputs. The second *reduces its outputs*: it is cut by rows at the same places, so
that each rank has just the inputs that its rows need, and computes a term of the sum of every
output. Between the two nothing is sent, as an activation acts on each value alone. With an odd
number of layers the last has no partner: it reduces, and each rank takes its share of inputs that
all ranks have.

Source: Shoeybi et al. 2019, "Megatron-LM", arXiv:1909.08053, section 3.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from network import Array, Linear, Momentum, Network, Part, full_layers, places
from schemes import Alone, Group, as_buffer

from phalanx.comm.layout import share_of
from phalanx.errors import UserError


def partitions_outputs(number: int, num_layers: int) -> bool:
    """Return True for layers 0, 2, 4 …; the others reduce, as does a last one without a partner."""
    return number % 2 == 0 and number + 1 < num_layers


def parts_of(sizes: Sequence[int], rank: int, ranks: int) -> list[Part]:
    """Return the part of `rank` in each layer of a network, sizes[0] inputs to sizes[-1] outputs.

    Raises: UserError if a rank would get nothing of a layer.
    """
    parts = []
    layers = full_layers(sizes)
    for number, full in enumerate(layers):
        is_cut_by_columns = partitions_outputs(number, len(layers))
        width, what = (full.outputs, "outputs") if is_cut_by_columns else (full.inputs, "inputs")
        if width < ranks:
            raise UserError(
                f"--scheme tensor splits the {width} {what} of layer {number + 1} over {ranks} "
                f"ranks, so that some get nothing: use at most {width} ranks, or a larger --hidden"
            )
        share = share_of(rank, ranks, width)
        parts.append(replace(full, **{"columns" if is_cut_by_columns else "rows": share}))
    return parts


class Peers:
    """The collectives between the parts of a layer, with the time spent in them."""

    def __init__(self, group: Group) -> None:
        self.group, self.waited_s = group, 0.0

    def all_reduce(self, matrix: Array) -> None:
        """Sum over all ranks, in place."""
        began = time.perf_counter()
        self.group.all_reduce(as_buffer(matrix))
        self.waited_s += time.perf_counter() - began

    def all_gather(self, columns: Array, width: int) -> Array:
        """Return (n, width) from the columns of all ranks."""
        began, size = time.perf_counter(), self.group.size
        shares = [share_of(rank, size, width) for rank in range(size)]
        all_columns = [np.empty((len(columns), len(share)), columns.dtype) for share in shares]
        all_columns[self.group.rank][...] = columns
        buffers = [as_buffer(each) for each in all_columns]
        self.group.all_gather(buffers, buffers[self.group.rank])
        self.waited_s += time.perf_counter() - began
        return np.concatenate(all_columns, axis=1)


class PartitionOutput(Linear):
    """Some outputs, from all inputs. Forward needs no communication. Backward, each rank has the
    gradient by the inputs *through its outputs*: the sum over ranks is the full gradient."""

    def __init__(self, peers: Peers, *words: Any, **more: Any) -> None:
        super().__init__(*words, **more)
        self.peers = peers

    def backward(self, gradient: Array) -> Array:
        by_inputs = super().backward(gradient)
        if not self.is_first:
            self.peers.all_reduce(by_inputs)
        return by_inputs


class ReduceOutput(Linear):
    """All outputs, from some inputs: each is a term of a sum over all inputs. Backward, all ranks
    have the gradient by the outputs, and that by the rank's inputs follows from it."""

    def __init__(self, peers: Peers, *words: Any, **more: Any) -> None:
        super().__init__(*words, **more)
        self.peers = peers

    def forward(self, inputs: Array) -> Array:
        self.inputs = inputs
        outputs = inputs @ self.weight
        self.peers.all_reduce(outputs)
        return outputs + self.bias  # added after the sum, or it would count once per rank


class ReduceOutputAlone(ReduceOutput):
    """`ReduceOutput` without a partner before it: takes its share of all inputs, and returns the
    gradient by all of them."""

    def forward(self, inputs: Array) -> Array:
        group, self.width = self.peers.group, inputs.shape[1]
        share = share_of(group.rank, group.size, self.width)
        return super().forward(inputs[:, share.start : share.stop])

    def backward(self, gradient: Array) -> Array:
        by_share = super().backward(gradient)
        return by_share if self.is_first else self.peers.all_gather(by_share, self.width)


class Tensor(Alone):
    """All samples, a part of the parameters. `combine` does nothing: a rank's gradients are those
    of parameters that it alone has, or that all ranks update alike."""

    def __init__(
        self,
        sizes: Sequence[int],
        activation: str,
        group: Group,
        *,
        seed: int,
        dtype: str,
        lr: float,
        momentum: float,
    ) -> None:
        self.peers, self.sizes = Peers(group), sizes
        self.parts = parts_of(sizes, group.rank, group.size)
        network = Network(
            self.parts, activation, seed=seed, dtype=dtype, make_layer=self._make_layer
        )
        super().__init__(network, Momentum(network.parameters, lr=lr, momentum=momentum))

    def _make_layer(self, part: Part, *memory: Array, is_first: bool) -> Linear:
        number, last = self.parts.index(part), len(self.parts) - 1
        kind: type[PartitionOutput | ReduceOutput] = ReduceOutput
        if partitions_outputs(number, last + 1):
            kind = PartitionOutput
        elif number % 2 == 0:
            kind = ReduceOutputAlone
        return kind(self.peers, part, *memory, is_first=is_first)

    @property
    def waited_s(self) -> float:  # type: ignore[override]
        return self.peers.waited_s

    def reported(self, num_samples: int) -> slice:
        """Return a share of the samples: all ranks compute the same losses."""
        share = share_of(self.peers.group.rank, self.peers.group.size, num_samples)
        return slice(share.start, share.stop)

    def full_parameters(self) -> Array:
        """Return the sum of all ranks' vectors, with their parts in place and zeros elsewhere."""
        layers = full_layers(self.sizes)
        whole = np.zeros(sum(layer.size for layer in layers), self.network.parameters.dtype)
        for part, mine, layer, place in zip(
            self.parts, places(self.parts), layers, places(layers), strict=True
        ):
            values, full = self.network.parameters[mine], whole[place]
            count = len(part.rows) * len(part.columns)
            weight = full[: layer.inputs * layer.outputs].reshape(layer.inputs, layer.outputs)
            weight[np.ix_(part.rows, part.columns)] = values[:count].reshape(len(part.rows), -1)
            if len(part.columns) < layer.outputs or self.peers.group.rank == 0:
                full[weight.size :][part.columns] = values[count:]  # else every rank has it
        self.peers.group.all_reduce(as_buffer(whole))
        return whole
