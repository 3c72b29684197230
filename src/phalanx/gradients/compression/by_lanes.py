"""Compression between nodes of several ranks: what leaves a node is the sum of its ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Size, Tensor

from phalanx.comm.group import Group
from phalanx.comm.layout import share_of
from phalanx.comm.traffic import all_reduce_traffic
from phalanx.gradients.compression.backends import GroupBackend
from phalanx.gradients.compression.compressor import Compressor, ReduceBackend, count_of
from phalanx.torch_backend.tensors import buffer_of

ITEMSIZE = 4  # bytes of a value that is summed on a node


class LanesCompressor(Compressor):
    """Compressor of node sums: every rank of a node carries a slice of them to the other nodes.

    On each node a bucket is summed as it is, a slice a rank; ranks with the same place on their
    nodes, a lane, sum their slices compressed; what has come out the ranks of a node hand each
    other. So each node sends what one rank would, and rounding errors are those of one value a
    node. The residual that `inner` keeps is that of the slice.

    Cost: for m nodes of k ranks, on the node 2(k-1)/k · bytes; between the nodes what `inner`
          sends of bytes/k among m ranks, through each of the k lanes.
    """

    def __init__(self, inner: Compressor, node: Group, lane: Group) -> None:
        """inner: one that can compress slices. node, lane: this rank's; every rank has the same
        number in its node as its lane has."""
        super().__init__()
        self._inner, self._node, self._lane = inner, node, lane
        self.name, self.has_state = inner.name, inner.has_state

    @property
    def state_name(self) -> str:
        return f"{self._inner.state_name} of {self._node.size} lanes"

    def prepare(self, number: int, shapes: Sequence[Size]) -> None:
        count = len(self._slice_of(count_of(shapes), self._node.rank))
        self._inner.prepare(number, [Size([count])])

    def reduce(self, number: int, values: Tensor, backend: ReduceBackend) -> None:  # noqa: ARG002
        slices = values.split(self._sizes(len(values)))
        own, buffers = slices[self._node.rank], [buffer_of(part) for part in slices]
        self._node.reduce_scatter(buffer_of(own), buffers)
        if len(own):
            self._inner.reduce(number, own, GroupBackend(self._lane))
        self._node.all_gather(buffers, buffer_of(own))

    def sent_bytes(self, shapes: Sequence[Size], rank: int, num_ranks: int) -> int:  # noqa: ARG002
        count, own = count_of(shapes), self._node.rank
        on_node = all_reduce_traffic(count, ITEMSIZE, own, self._node.size).sent_bytes
        part = [Size([len(self._slice_of(count, own))])]
        return on_node + self._inner.sent_bytes(part, self._lane.rank, self._lane.size)

    def state_dict(self) -> dict[str, Tensor]:
        return self._inner.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._inner.load_state_dict(state)

    def _sizes(self, count: int) -> list[int]:
        return [len(self._slice_of(count, rank)) for rank in range(self._node.size)]

    def _slice_of(self, count: int, rank: int) -> range:
        return share_of(rank, self._node.size, count)
