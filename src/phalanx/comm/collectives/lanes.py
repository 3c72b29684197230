"""All-reduce on nodes × network: every rank of a node carries its own slice to the other nodes.

On each node the vector is reduced slice by slice, each slice by one rank. The ranks that own the
same slice on different nodes are a lane; they all-reduce it among themselves, all lanes at the
same time. Then the ranks of a node hand each other the finished slices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from phalanx.comm.buffer import Buffer
from phalanx.comm.collective import Collective
from phalanx.comm.collectives import pairwise
from phalanx.comm.collectives.accumulate import accumulator_of, store_result
from phalanx.comm.dtypes import ReduceOp
from phalanx.comm.transport import SubTransport, Transport


def ranks_by_node(nodes: Sequence[int]) -> list[list[int]]:
    """The ranks of each node, the nodes in the order of their first ranks.

    nodes: the number of each rank's node.
    """
    places: dict[int, list[int]] = {}
    for rank, node in enumerate(nodes):
        places.setdefault(node, []).append(rank)
    return list(places.values())


def all_reduce(
    transport: Transport,
    buffer: Buffer,
    op: ReduceOp,
    divisor: float,
    *,
    nodes: Sequence[int],
    run_on_node: Callable[[Collective], None] | None = None,
) -> None:
    """Reduce `buffer` over all ranks, in place; every rank ends with the same bytes.

    buffer: (n,), the same n and dtype on every rank.
    nodes:  the number of each rank's node; there are as many lanes as ranks on the smallest node.
    run_on_node: executes a collective of the ranks of this node; None: they exchange messages.
    Cost:   for m nodes of k ranks, 4 rounds: on the node 2(k-1)/k · bytes, between the nodes
            2(m-1)/m · bytes/k through each of the k lanes.
    Order:  of the ranks on each node, then of the nodes.
    Source: Träff & Hunold 2019, "Decomposing collectives for exploiting multi-lane
            communication", arXiv:1910.13373.
    """
    by_node = ranks_by_node(nodes)
    num_lanes = min(len(ranks) for ranks in by_node)
    local = SubTransport(transport, next(ranks for ranks in by_node if transport.rank in ranks))
    total = accumulator_of(transport, buffer, op)
    spare = [0] * (local.size - num_lanes)  # ranks of a larger node that carry nothing
    totals = pairwise.shares_of(total, num_lanes) + [total.part(0, n) for n in spare]
    results = pairwise.shares_of(buffer, num_lanes) + [buffer.part(0, n) for n in spare]
    own = local.rank
    run = run_on_node or partial(pairwise.run, local)
    run(Collective("reduce_scatter", totals, (totals[own],), op))
    if own < num_lanes:
        lane = SubTransport(transport, [ranks[own] for ranks in by_node])
        pairwise.all_reduce(lane, totals[own], op, 1.0)
        store_result(totals[own], results[own], op, divisor)
    run(Collective("all_gather", (results[own],), results))
