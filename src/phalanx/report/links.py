"""Share of a step that exchanges take in the node and between nodes, and waiting for others. Pure.

In a step the rank that comes last to the exchange waits for nobody: its communication time is that
of the exchange itself, and what the others have spent beyond it they have waited. The time of the
exchange is divided as the last rank has measured it: with peers of its node, with other nodes.
Where communication is hidden behind the backward pass, what is left of it is divided as all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from statistics import fmean

from phalanx.report.rank_measures import FIELDS, NOT_MEASURED, RankEpoch

FORMULA_SHARE = 0.01
"""Of the bytes sent: up to so much may be by formula where the others are counted."""
IN_STEP = ("mpi", "shared", "gloo", "zero", "local")
"""Strategies of which every rank makes the same steps, and exchanges gradients after them."""


@dataclass(frozen=True, kw_only=True)
class LinkShares:
    """Shares of a mean step of a run, over ranks and steps; None where not measured."""

    step_s: float
    node: float | None  # exchange in the memory of a node
    network: float | None  # exchange with other nodes
    untold: float | None  # exchange of which the link was not measured
    waiting: float  # for ranks that come later
    network_bytes: float | None = None  # that a node sends to others in a step
    is_formula: bool = False  # not counted: the MPI library does not say what it sends


def link_shares(epochs: Sequence[Sequence[RankEpoch]], *, num_nodes: int) -> LinkShares | None:
    """Return the shares of a run; None where ranks do not make the same steps.

    epochs: the timed ones, of each the ranks in their order.
    """
    step_s = sum(fmean(sum(rank.parts_s) for rank in ranks) for ranks in epochs if ranks)
    numbers = {rank.steps for ranks in epochs for rank in ranks}
    num_steps = sum(ranks[0].steps for ranks in epochs if ranks)
    is_alike = all(len({rank.steps for rank in ranks}) == 1 for ranks in epochs)
    if not num_steps or not is_alike or 0 in numbers or min(map(len, epochs)) < 2:
        return None
    totals = {"node": 0.0, "network": 0.0, "untold": 0.0, "waiting": 0.0}
    for ranks in epochs:
        for first in range(0, FIELDS * ranks[0].steps, FIELDS):
            rows = [rank.exchanges[first : first + FIELDS] for rank in ranks]
            last = min(rows, key=itemgetter(0))
            totals["waiting"] += fmean(row[0] for row in rows) - last[0]
            for link, time_s in _divided(last, num_nodes).items():
                totals[link] += time_s
    is_told = totals["untold"] == 0.0
    sent, is_formula = _bytes_between(epochs)
    return LinkShares(
        step_s=step_s / num_steps,
        node=totals["node"] / step_s if is_told else None,
        network=totals["network"] / step_s if is_told else None,
        untold=None if is_told else totals["untold"] / step_s,
        waiting=totals["waiting"] / step_s,
        network_bytes=None if sent is None else sent / num_steps / num_nodes,
        is_formula=is_formula,
    )


def _divided(last: Sequence[float], num_nodes: int) -> dict[str, float]:
    """Divide the exchange of the rank that came last among the links."""
    communication_s, node_s, network_s = last
    if num_nodes == 1:
        return {"node": communication_s}
    if node_s == NOT_MEASURED or node_s + network_s <= 0:
        return {"untold": communication_s}
    share = network_s / (node_s + network_s)
    return {"node": communication_s * (1 - share), "network": communication_s * share}


def _bytes_between(epochs: Sequence[Sequence[RankEpoch]]) -> tuple[int | None, bool]:
    """Return the bytes that went between nodes, None where they were not counted, and whether more
    than sums of a few values are by formula."""
    events = [rank.event for ranks in epochs for rank in ranks]
    sent = [event.network_sent_bytes for event in events]
    known = [num_bytes for num_bytes in sent if num_bytes is not None]
    formula = sum(event.formula_bytes or 0 for event in events)
    is_formula = formula > FORMULA_SHARE * sum(event.sent_bytes or 0 for event in events)
    return (sum(known) if len(known) == len(sent) else None), is_formula
