"""Partition of a network's weights among the ranks of the tensor scheme: pure arithmetic.

Layers are cut in pairs. Of the first, each rank gets some *columns* of the weight (inputs,
outputs), and so computes some of the outputs from all of the inputs. The second is cut by *rows*
at the same places: each rank has just the inputs that its rows need, and computes a part of the
sum of every output; adding these parts up over the ranks ends the pair. A last layer without
partner is cut by rows too; there each rank takes its share of inputs that all ranks have.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from phalanx.comm.layout import share_of
from phalanx.errors import UserError

Kind = Literal["columns", "rows", "rows of whole inputs"]


@dataclass(frozen=True, kw_only=True)
class LayerPartition:
    """One layer, (inputs, outputs), among `ranks` ranks."""

    kind: Kind
    inputs: int
    outputs: int
    ranks: int

    def rows(self, rank: int) -> range:
        """Rows of the weight that `rank` has: the inputs that it uses."""
        if self.kind == "columns":
            return range(self.inputs)
        return share_of(rank, self.ranks, self.inputs)

    def columns(self, rank: int) -> range:
        """Columns of the weight, and elements of the bias: the outputs that it computes."""
        if self.kind == "columns":
            return share_of(rank, self.ranks, self.outputs)
        return range(self.outputs)

    def size(self, rank: int) -> int:
        """Parameters that `rank` has. The bias of a layer cut by rows is on every rank."""
        return (len(self.rows(rank)) + 1) * len(self.columns(rank))

    @property
    def shared_out(self) -> int:
        """The width that is cut: every rank must get some of it."""
        return self.outputs if self.kind == "columns" else self.inputs


def partition_layers(sizes: Sequence[int], ranks: int) -> list[LayerPartition]:
    """Cut a network of linear layers with sizes[0] inputs and sizes[-1] outputs.

    Raises: UserError when a rank would get nothing of a layer.
    """
    cut = [
        LayerPartition(kind=kind, inputs=inputs, outputs=outputs, ranks=ranks)
        for kind, (inputs, outputs) in zip(
            _kinds(len(sizes) - 1), itertools.pairwise(sizes), strict=True
        )
    ]
    for number, layer in enumerate(cut):
        if layer.shared_out < ranks:
            what = "outputs" if layer.kind == "columns" else "inputs"
            raise UserError(
                f"--scheme tensor splits the {layer.shared_out} {what} of layer {number + 1} "
                f"over {ranks} ranks, so that some get nothing: "
                f"use at most --ranks {layer.shared_out}, or a larger --hidden"
            )
    return cut


def _kinds(num_layers: int) -> Iterator[Kind]:
    for number in range(num_layers):
        if number % 2:
            yield "rows"
        else:
            yield "columns" if number + 1 < num_layers else "rows of whole inputs"
