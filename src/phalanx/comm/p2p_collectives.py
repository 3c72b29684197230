"""Point-to-point collectives: messages, by the algorithm selected for each call."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.comm.buffer import Buffer
from phalanx.comm.collectives import (
    dissemination,
    lanes,
    library,
    naive,
    pairwise,
    recursive_halving,
    ring,
    tree,
)
from phalanx.comm.dtypes import ReduceOp
from phalanx.comm.messages import MessageTransport
from phalanx.comm.select import AlgorithmOption, Topology, choose_all_reduce


class P2PCollectives:
    """Collectives over point-to-point messages; `Group` documents the calls."""

    def __init__(
        self,
        transport: MessageTransport,
        nodes: tuple[int, ...],
        intra_node: lanes.IntraNodeCollectives | None = None,
        *,
        is_emulated: bool = False,
    ) -> None:
        """nodes: the number of each rank's node; intra_node: this rank's, where all nodes' ranks
        share memory; is_emulated: messages leave by an emulated link."""
        self._transport, self.intra_node = transport, intra_node
        self._topology = Topology(nodes=nodes, shares_memory=False, is_emulated=is_emulated)

    def barrier(self, *, timeout_s: float | None = None) -> None:
        self._transport.begin(timeout_s)
        dissemination.barrier(self._transport)

    def all_reduce(
        self,
        buffer: Buffer,
        op: ReduceOp = ReduceOp.SUM,
        *,
        divisor: float = 1.0,
        algorithm: AlgorithmOption = "auto",
        timeout_s: float | None = None,
    ) -> None:
        self._transport.begin(timeout_s)
        choice = choose_all_reduce(
            buffer.num_bytes,
            buffer.dtype,
            topology=self._topology,
            requested=algorithm,
            is_native=library.is_native(buffer.dtype),
        )
        match choice.algorithm:
            case "short":
                pairwise.all_to_all_reduce(self._transport, buffer, op, divisor)
            case "direct":
                between_nodes = self._topology.num_nodes > 1
                reduce = pairwise.all_reduce_in_chunks if between_nodes else pairwise.all_reduce
                reduce(self._transport, buffer, op, divisor)
            case "naive":
                naive.all_reduce(self._transport, buffer, op, divisor)
            case "ring":
                ring.all_reduce(self._transport, buffer, op, divisor)
            case "tree":
                tree.all_reduce(self._transport, buffer, op, divisor)
            case "halving":
                recursive_halving.all_reduce(self._transport, buffer, op, divisor)
            case "lanes":
                lanes.all_reduce(
                    self._transport,
                    buffer,
                    op,
                    divisor,
                    nodes=self._topology.nodes,
                    intra_node=self.intra_node,
                    timeout_s=timeout_s,
                )
            case "library":
                library.all_reduce(self._transport, buffer, op, divisor)
            case "shared":
                raise AssertionError("shared memory is not the network")

    def reduce(
        self,
        buffer: Buffer,
        op: ReduceOp = ReduceOp.SUM,
        *,
        root: int,
        divisor: float = 1.0,
        timeout_s: float | None = None,
    ) -> None:
        self._transport.begin(timeout_s)
        pairwise.reduce(self._transport, buffer, op, divisor, root=root)

    def broadcast(self, buffer: Buffer, *, root: int, timeout_s: float | None = None) -> None:
        self._transport.begin(timeout_s)
        tree.broadcast(self._transport, buffer, root=root)

    def all_gather(
        self, outputs: Sequence[Buffer], part: Buffer, *, timeout_s: float | None = None
    ) -> None:
        self._transport.begin(timeout_s)
        pairwise.all_gather(self._transport, outputs, part)

    def reduce_scatter(
        self,
        output: Buffer,
        parts: Sequence[Buffer],
        op: ReduceOp = ReduceOp.SUM,
        *,
        divisor: float = 1.0,
        timeout_s: float | None = None,
    ) -> None:
        self._transport.begin(timeout_s)
        pairwise.reduce_scatter(self._transport, output, parts, op, divisor)

    def all_to_all(
        self,
        outputs: Sequence[Buffer],
        parts: Sequence[Buffer],
        *,
        timeout_s: float | None = None,
    ) -> None:
        self._transport.begin(timeout_s)
        pairwise.all_to_all(self._transport, outputs, parts)

    def gather(
        self,
        outputs: Sequence[Buffer] | None,
        part: Buffer,
        *,
        root: int,
        timeout_s: float | None = None,
    ) -> None:
        self._transport.begin(timeout_s)
        pairwise.gather(self._transport, outputs, part, root=root)

    def scatter(
        self,
        output: Buffer,
        parts: Sequence[Buffer] | None,
        *,
        root: int,
        timeout_s: float | None = None,
    ) -> None:
        self._transport.begin(timeout_s)
        pairwise.scatter(self._transport, output, parts, root=root)
