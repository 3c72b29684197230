"""Collectives on nodes × network: every rank of a node carries its own slice to the other nodes.

On each node a vector is reduced slice by slice, each slice by one rank. The ranks that own the same
slice on different nodes are a lane; they reduce it among themselves, all lanes at the same time.
What has come from other nodes the ranks of a node hand each other. So each byte crosses the network
once for a node, not once for a rank. Long vectors go in chunks: while one is on the network, the
ranks of a node reduce the next ones and hand out the last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from phalanx.comm.buffer import Buffer
from phalanx.comm.collective import Collective
from phalanx.comm.collectives import pairwise
from phalanx.comm.collectives.accumulate import accumulator_dtype, accumulator_of, store_result
from phalanx.comm.collectives.stages import places_for, stages
from phalanx.comm.dtypes import ReduceOp
from phalanx.comm.kernels import widen
from phalanx.comm.transport import PendingExchange, SubTransport, Transport

RunOnNode = Callable[[Collective], None]

CHUNK_BYTES = 256 * 1024  # in a message between two nodes, at least
MAX_CHUNKS = 16  # unless they become longer than LARGEST_BYTES, which bounds the memory
LARGEST_BYTES = 4 * 2**20


class Lanes:
    """The ranks of this node, and those with the same place on the other nodes."""

    def __init__(
        self, transport: Transport, nodes: Sequence[int], run_on_node: RunOnNode | None
    ) -> None:
        """nodes: the number of each rank's node; there are as many lanes as ranks on the smallest
        node. run_on_node: executes a collective of the ranks of this node; None: they exchange
        messages."""
        self.by_node = ranks_by_node(nodes)
        self.num_lanes = min(len(ranks) for ranks in self.by_node)
        local = SubTransport(
            transport, next(ranks for ranks in self.by_node if transport.rank in ranks)
        )
        self.local_rank, self.local_size = local.rank, local.size
        self.run_on_node: RunOnNode = run_on_node or partial(pairwise.run, local)
        self.lane: SubTransport | None = None
        """None where this node has more ranks than lanes and this one carries nothing."""
        if local.rank < self.num_lanes:
            self.lane = SubTransport(transport, [ranks[local.rank] for ranks in self.by_node])

    def slices_of(self, buffer: Buffer) -> list[Buffer]:
        """`buffer` cut into a slice a lane; those who carry nothing have empty ones."""
        spare = [buffer.part(0, 0)] * (self.local_size - self.num_lanes)
        return pairwise.shares_of(buffer, self.num_lanes) + spare


def ranks_by_node(nodes: Sequence[int]) -> list[list[int]]:
    """The ranks of each node, the nodes in the order of their first ranks.

    nodes: the number of each rank's node.
    """
    places: dict[int, list[int]] = {}
    for rank, node in enumerate(nodes):
        places.setdefault(node, []).append(rank)
    return list(places.values())


def run(
    transport: Transport,
    collective: Collective,
    *,
    nodes: Sequence[int],
    run_on_node: RunOnNode | None = None,
) -> None:
    """Execute an all-reduce, a reduce-scatter or an all-gather; the latter two on nodes of the same
    number of ranks. Arguments: as `Lanes`."""
    kind, inputs, outputs, _, divisor, *_ = collective
    lanes = Lanes(transport, nodes, run_on_node)
    if kind == "all_gather":
        all_gather(lanes, outputs, inputs[0])
    elif kind == "reduce_scatter":
        reduce_scatter(transport, lanes, outputs[0], inputs, collective.reduction, divisor)
    else:
        all_reduce(transport, lanes, outputs[0], collective.reduction, divisor)


def all_reduce(
    transport: Transport, lanes: Lanes, buffer: Buffer, op: ReduceOp, divisor: float
) -> None:
    """Reduce `buffer` over all ranks, in place; every rank ends with the same bytes.

    buffer: (n,), the same n and dtype on every rank.
    Cost:   for m nodes of k ranks, 4 rounds: on the node 2(k-1)/k · bytes, between the nodes
            2(m-1)/m · bytes/k through each of the k lanes; beside each other but for the first and
            last chunk.
    Order:  of the ranks on each node, then of the nodes.
    Source: Träff & Hunold 2019, "Decomposing collectives for exploiting multi-lane
            communication", arXiv:1910.13373.
    """
    total = accumulator_of(transport, buffer, op)
    lane, own, num_nodes = lanes.lane, lanes.local_rank, len(lanes.by_node)
    size = num_nodes * lanes.num_lanes
    num_chunks = num_chunks_of(-(-total.num_bytes // size))
    totals = [lanes.slices_of(chunk) for chunk in pairwise.shares_of(total, num_chunks)]
    results = [lanes.slices_of(chunk) for chunk in pairwise.shares_of(buffer, num_chunks)]
    longest = -(-max(slices[own].count for slices in totals) // num_nodes)
    arriving = places_for(transport, num_chunks, num_nodes, longest, total.dtype)
    sums: list[tuple[PendingExchange, list[Buffer]]] = []
    gathers: list[PendingExchange] = []
    for stage, chunk in stages(num_chunks, 3):
        mine = totals[chunk][own]
        if stage == 0:
            lanes.run_on_node(Collective("reduce_scatter", totals[chunk], (mine,), op))
        if lane is not None:
            shares = pairwise.shares_of(mine, num_nodes)
            if stage == 0:
                spare = arriving[chunk % len(arriving)]
                begun = pairwise.begin_reduce_scatter(lane, shares[lane.rank], shares, spare)
                sums.append(begun)
            elif stage == 1:
                exchange, terms = sums[chunk]
                exchange.finish()
                lane.reduce_terms(terms, shares[lane.rank], op, 1.0)
                gathers.append(pairwise.begin_all_gather(lane, shares, shares[lane.rank]))
            else:
                gathers[chunk].finish()
                store_result(mine, results[chunk][own], op, divisor)
        if stage == 2:
            lanes.run_on_node(Collective("all_gather", (results[chunk][own],), results[chunk]))


def reduce_scatter(
    transport: Transport,
    lanes: Lanes,
    output: Buffer,
    parts: Sequence[Buffer],
    op: ReduceOp,
    divisor: float,
) -> None:
    """`output` becomes the reduction of parts[own rank] of all ranks.

    parts: one a rank, of any counts, the same list on every rank; only `output`, which may be
           parts[own rank], is written.
    Cost:  for m nodes of k ranks, 2 rounds: on the node (k-1)/k · bytes, between the nodes
           (m-1)/m · bytes/k through each of the k lanes; beside each other but for the first chunk.
    Order: of the ranks on each node, then of the nodes.
    """
    assert lanes.lane is not None, "the nodes have the same number of ranks"
    lane, by_node = lanes.lane, lanes.by_node
    wide = accumulator_dtype(output.dtype, op)
    cuts = _cut_all(parts)
    outputs = pairwise.shares_of(output, len(cuts))
    longest = max(-(-part.count // len(cuts)) for part in parts)
    node_sums = places_for(transport, len(cuts), lane.size, longest, wide)
    arriving = places_for(transport, len(cuts), lane.size, longest, wide)
    widened = [transport.scratch(longest, wide) for _ in range(lanes.local_size)]
    begun: list[tuple[PendingExchange, list[Buffer]]] = []
    for stage, chunk in stages(len(cuts), 2):
        if stage == 1:
            exchange, terms = begun[chunk]
            exchange.finish()
            if wide == output.dtype:
                lane.reduce_terms(terms, outputs[chunk], op, divisor)
            else:
                lane.reduce_terms(terms, terms[lane.rank], op, 1.0)
                store_result(terms[lane.rank], outputs[chunk], op, divisor)
            continue
        sums = []
        for ranks, place in zip(by_node, node_sums[chunk % len(node_sums)], strict=True):
            local = [cuts[chunk][rank] for rank in ranks]
            if wide != output.dtype:
                local = [_widened(part, to) for part, to in zip(local, widened, strict=True)]
            sums.append(place.part(0, local[lanes.local_rank].count))
            lanes.run_on_node(Collective("reduce_scatter", local, (sums[-1],), op))
        spare = arriving[chunk % len(arriving)]
        begun.append(pairwise.begin_reduce_scatter(lane, sums[lane.rank], sums, spare))


def all_gather(lanes: Lanes, outputs: Sequence[Buffer], part: Buffer) -> None:
    """outputs[rank] becomes that rank's `part`.

    outputs: one a rank, of any counts, the same counts on every rank; outputs[own rank] may be
             `part` itself.
    Cost:    for m nodes of k ranks, 2 rounds: between the nodes (m-1)/m · bytes/k through each of
             the k lanes, on the node as many as all have; beside each other but for the last chunk.
    """
    assert lanes.lane is not None, "the nodes have the same number of ranks"
    lane, own, by_node = lanes.lane, lanes.local_rank, lanes.by_node
    cuts = _cut_all(outputs)
    sent = pairwise.shares_of(part, len(cuts))
    begun: list[PendingExchange] = []
    for stage, chunk in stages(len(cuts), 2):
        if stage == 0:
            arriving = [cuts[chunk][ranks[own]] for ranks in by_node]
            begun.append(pairwise.begin_all_gather(lane, arriving, sent[chunk]))
            if chunk == 0:  # while it is on its way
                here = [outputs[rank] for rank in by_node[lane.rank]]
                lanes.run_on_node(Collective("all_gather", (part,), here))
            continue
        begun[chunk].finish()
        for node, ranks in enumerate(by_node):
            if node != lane.rank:
                here = [cuts[chunk][rank] for rank in ranks]
                lanes.run_on_node(Collective("all_gather", (here[own],), here))


def num_chunks_of(num_bytes: int) -> int:
    """Return the number of chunks in which a lane sends `num_bytes` to each of its peers."""
    return max(1, min(MAX_CHUNKS, num_bytes // CHUNK_BYTES), -(-num_bytes // LARGEST_BYTES))


def _cut_all(parts: Sequence[Buffer]) -> list[list[Buffer]]:
    """Cut each rank's part into as many chunks; indexed by chunk, then rank."""
    num_chunks = num_chunks_of(max(part.num_bytes for part in parts))
    by_rank = [pairwise.shares_of(part, num_chunks) for part in parts]
    return [list(chunk) for chunk in zip(*by_rank, strict=True)]


def _widened(part: Buffer, memory: Buffer) -> Buffer:
    """`part` in the type of the totals, in `memory`."""
    wide = memory.part(0, part.count)
    widen(part, wide)
    return wide
