"""Collectives over messages, each by one of the algorithms of this package."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from phalanx.comm.buffer import Buffer
from phalanx.comm.collective import Collective
from phalanx.comm.collectives import (
    bruck,
    dissemination,
    exchange,
    lanes,
    naive,
    pairwise,
    recursive_halving,
    ring,
    tree,
)
from phalanx.comm.dtypes import ReduceOp
from phalanx.comm.select import Route
from phalanx.comm.transport import Transport

_ALL_REDUCES: dict[Route, Callable[[Transport, Buffer, ReduceOp, float], None]] = {
    "device": pairwise.all_reduce,
    "short": pairwise.all_to_all_reduce,
    "direct": pairwise.all_reduce,
    "naive": naive.all_reduce,
    "ring": ring.all_reduce,
    "tree": tree.all_reduce,
    "halving": recursive_halving.all_reduce,
}


def run(
    transport: Transport,
    collective: Collective,
    route: Route,
    *,
    nodes: Sequence[int],
    run_on_node: Callable[[Collective], None] | None = None,
) -> None:
    """Execute `collective` by the algorithm that `route` names.

    nodes: the number of each rank's node; run_on_node: executes a collective of the ranks of this
    node in memory that they share; None where those of some node do not share any.
    """
    kind, _, outputs, op, divisor, root, *_ = collective
    if kind == "barrier":
        dissemination.barrier(transport)
    elif kind == "broadcast":
        assert root is not None, "checked"
        tree.broadcast(transport, outputs[0], root=root, nodes=nodes)
    elif route == "lanes":
        lanes.run(transport, collective, nodes=nodes, run_on_node=run_on_node)
    elif route == "bruck":
        exchange.run(bruck, transport, collective)
    elif route == "tree" and kind == "reduce":
        assert op is not None and root is not None, "checked"
        tree.reduce(transport, outputs[0], op, divisor, root=root, nodes=nodes)
    elif kind != "all_reduce":
        exchange.run(pairwise, transport, collective)
    elif route == "direct" and len(set(nodes)) > 1:
        lanes.run(transport, collective, nodes=range(transport.size))
    else:
        _ALL_REDUCES[route](transport, outputs[0], collective.reduction, divisor)
