"""Collectives on nodes × network: every rank of a node carries its own slice to the other nodes.

On each node a vector is reduced slice by slice, each slice by one rank. The ranks that own the same
slice on different nodes are a lane; they reduce it among themselves, all lanes at the same time.
What has come from other nodes the ranks of a node hand each other. So each byte crosses the network
once for a node, not once for a rank. Long vectors go in chunks: while one is on the network, the
ranks of a node reduce the next ones and hand out the last.

Sums of half types are made in float32 and rounded twice: that of a node before it leaves, divided
by then, so that a mean overflows no earlier than the values themselves; and that of the nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from phalanx.comm.buffer import Buffer
from phalanx.comm.collective import Collective
from phalanx.comm.collectives import exchange, pairwise, recursive_halving
from phalanx.comm.collectives.accumulate import accumulator_dtype
from phalanx.comm.collectives.stages import DEPTH, places_for, run_in_stages
from phalanx.comm.dtypes import DType, ReduceOp
from phalanx.comm.select import FEW_NODES
from phalanx.comm.transport import SubTransport, Transport

RunOnNode = Callable[[Collective], None]

CHUNK_BYTES = 256 * 1024  # least that a rank sends to its peers on other nodes
# Chunks in flight; each costs two barriers of a node's ranks, which take milliseconds if ranks
# share cores. There are more if chunks would exceed LARGEST_BYTES, which bounds the memory.
MAX_CHUNKS = DEPTH + 1
LARGEST_BYTES = 4 * 2**20
# A lane of more than FEW_NODES halves its vector where each would have a share of fewer bytes, and
# always from MANY_NODES on, where it would else have as many peers: 1 MB of 1,000 nodes of 16 ranks
# were 1,998 messages of 65 bytes. Not measured there: a message takes some 5 µs to post.
SMALL_SHARE_BYTES, MANY_NODES = 4096, 64


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
        self.run_on_node: RunOnNode = run_on_node or partial(exchange.run, pairwise, local)
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
    Cost:   for m nodes of k ranks, on the node 2 rounds of (k-1)/k · bytes, nothing where k is 1;
            between the nodes 2(m-1)/m · bytes/k through each of the k lanes, in one round where m
            is 2 and in two else; beside each other but for the first and last chunk. Short vectors
            of more than FEW_NODES, and all of MANY_NODES, by `recursive_halving`.
    Order:  of the ranks on each node, then of the nodes, or that of `recursive_halving` of these.
    Source: Träff & Hunold 2019, "Decomposing collectives for exploiting multi-lane
            communication", arXiv:1910.13373.
    """
    lane, own, num_nodes = lanes.lane, lanes.local_rank, len(lanes.by_node)
    several = transport.size > num_nodes
    num_rounds = num_rounds_of(num_nodes)
    reduction = pairwise.reduce_in_one_round if num_rounds == 1 else pairwise.reduce_in_two_rounds
    num_chunks = num_chunks_of_all_reduce(buffer.num_bytes, lanes.num_lanes, num_nodes)
    chunks = [lanes.slices_of(chunk) for chunk in pairwise.shares_of(buffer, num_chunks)]
    longest = max(slices[own].count for slices in chunks)
    longest = longest if num_rounds == 1 else -(-longest // num_nodes)
    share_bytes = buffer.num_bytes // (num_chunks * lanes.num_lanes * num_nodes)
    halves = several and is_halved(share_bytes, num_nodes)
    arriving: list[list[Buffer]] = []
    if halves:
        num_rounds = recursive_halving.num_rounds_of(num_nodes)
    else:
        arriving = places_for(transport, num_chunks, num_nodes - 1, longest, buffer.dtype)
    on_node, between = _divisors(buffer.dtype, op, divisor) if several else (1.0, divisor)

    def steps(number: int) -> Iterator[None]:
        slices = chunks[number]
        mine = slices[own]
        if several:
            lanes.run_on_node(Collective("reduce_scatter", slices, (mine,), op, on_node))
        if lane is None:
            yield from [None] * num_rounds
        elif halves:
            yield from recursive_halving.reduce_in_rounds(lane, mine, op, between)
        else:
            yield from reduction(lane, mine, arriving[number % len(arriving)], op, between)
        if several:
            lanes.run_on_node(Collective("all_gather", (mine,), slices))

    run_in_stages([steps(number) for number in range(num_chunks)], num_rounds + 1)


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
    lane, own, dtype = lanes.lane, lanes.local_rank, output.dtype
    chunks = _cut_all(parts, lane.size)
    outputs = pairwise.shares_of(output, len(chunks))
    longest = max(-(-part.count // len(chunks)) for part in parts)
    node_sums = places_for(transport, len(chunks), lane.size, longest, dtype)
    arriving = places_for(transport, len(chunks), lane.size - 1, longest, dtype)
    on_node, between = _divisors(dtype, op, divisor)

    def steps(number: int) -> Iterator[None]:
        place, result = number % len(node_sums), outputs[number]
        sums = []
        for ranks, memory in zip(lanes.by_node, node_sums[place], strict=True):
            local = [chunks[number][rank] for rank in ranks]
            sums.append(memory.part(0, local[own].count))
            lanes.run_on_node(Collective("reduce_scatter", local, (sums[-1],), op, on_node))
        exchange, terms = pairwise.begin_reduce_scatter(lane, sums, arriving[place])
        yield
        exchange.finish()
        lane.reduce_terms(terms, result, op, between)

    run_in_stages([steps(number) for number in range(len(chunks))], 2)


def all_gather(lanes: Lanes, outputs: Sequence[Buffer], part: Buffer) -> None:
    """outputs[rank] becomes that rank's `part`.

    outputs: one a rank, of any counts, the same counts on every rank; outputs[own rank] may be
             `part` itself.
    Cost:    for m nodes of k ranks, 2 rounds: between the nodes (m-1)/m · bytes/k through each of
             the k lanes, on the node as many as all have; beside each other but for the last chunk.
    """
    assert lanes.lane is not None, "the nodes have the same number of ranks"
    lane, own, by_node = lanes.lane, lanes.local_rank, lanes.by_node
    chunks = _cut_all(outputs, lane.size)
    sent = pairwise.shares_of(part, len(chunks))

    def steps(number: int) -> Iterator[None]:
        arriving = [chunks[number][ranks[own]] for ranks in by_node]
        exchange = pairwise.begin_all_gather(lane, arriving, sent[number])
        if number == 0:  # while it is on its way
            here = [outputs[rank] for rank in by_node[lane.rank]]
            lanes.run_on_node(Collective("all_gather", (part,), here))
        yield
        exchange.finish()
        for node, ranks in enumerate(by_node):
            if node != lane.rank:
                here = [chunks[number][rank] for rank in ranks]
                lanes.run_on_node(Collective("all_gather", (here[own],), here))

    run_in_stages([steps(number) for number in range(len(chunks))], 2)


def num_chunks_of(num_bytes: int) -> int:
    """Return the number of chunks in which a rank sends `num_bytes` to its peers of a lane."""
    return max(1, min(MAX_CHUNKS, num_bytes // CHUNK_BYTES), -(-num_bytes // LARGEST_BYTES))


def num_rounds_of(num_nodes: int) -> int:
    """Return the rounds of messages of an all-reduce among so many nodes: two nodes that send each
    other all they have send no more than if each reduced a half."""
    return 1 if num_nodes <= 2 else 2


def is_halved(share_bytes: int, num_nodes: int) -> bool:
    """Return whether lanes go by `recursive_halving`. share_bytes: of a node, in
    one message."""
    return num_nodes > FEW_NODES and (share_bytes < SMALL_SHARE_BYTES or num_nodes >= MANY_NODES)


def num_chunks_of_all_reduce(num_bytes: int, num_lanes: int, num_nodes: int) -> int:
    """Return the number of chunks in which a vector of `num_bytes` is reduced."""
    slice_bytes = -(-num_bytes // num_lanes)
    return num_chunks_of(slice_bytes * (num_nodes - 1) // (num_nodes if num_nodes > 2 else 1))


def _divisors(dtype: DType, op: ReduceOp, divisor: float) -> tuple[float, float]:
    """Return the divisors of the sums of a node and of the sums of all nodes."""
    is_rounded = accumulator_dtype(dtype, op) != dtype
    return (divisor, 1.0) if is_rounded and op is ReduceOp.SUM else (1.0, divisor)


def _cut_all(parts: Sequence[Buffer], num_nodes: int) -> list[list[Buffer]]:
    """Cut each rank's part into as many chunks; indexed by chunk, then rank."""
    num_chunks = num_chunks_of((num_nodes - 1) * max(part.num_bytes for part in parts))
    by_rank = [pairwise.shares_of(part, num_chunks) for part in parts]
    return [list(chunk) for chunk in zip(*by_rank, strict=True)]
