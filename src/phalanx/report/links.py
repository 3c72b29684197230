"""Share of a step that exchanges take in the node and between nodes, and waiting for others. Pure.

In a step the rank that comes last to the exchange waits for nobody: its communication time is that
of the exchange itself, and what the others have spent beyond it they have waited. The time of the
exchange is divided as the last rank has measured it: with peers of its node, with other nodes.
Where communication is hidden behind the backward pass, what is left of it is divided as all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from phalanx.report.rank_measures import RankEpoch

FORMULA_SHARE = 0.01
"""Share of the bytes sent that may be by formula where the others are counted."""
IN_STEP = ("mpi", "shared", "gloo", "zero", "local")
"""Strategies of which every rank makes the same steps, and exchanges gradients after them."""


@dataclass(frozen=True, kw_only=True)
class LinkShares:
    """Shares of a mean step of a run, over ranks and steps; None where not measured."""

    step_s: float
    node: float | None  # exchange in the memory of a node
    network: float | None  # exchange with other nodes
    untold: float | None  # exchange of which the link was not measured
    waiting: float  # waiting for ranks that come later
    network_bytes: float | None = None  # sent by a node to others in a step
    is_formula: bool = False  # not counted: the MPI library does not say what it sends


def link_shares(epochs: Sequence[Sequence[RankEpoch]], *, num_nodes: int) -> LinkShares | None:
    """Return the shares of a run; None where ranks do not make the same steps.

    epochs: the timed ones, of each the ranks in their order.
    """
    numbers = [{len(rank.steps) for rank in ranks} for ranks in epochs]
    if min(map(len, epochs)) < 2 or any(len(steps) > 1 or 0 in steps for steps in numbers):
        return None
    by_rank = zip(*epochs, strict=True)
    steps = np.stack([np.concatenate([epoch.steps for epoch in of_rank]) for of_rank in by_rank])
    communication_s = steps["communication_s"]
    last = steps[communication_s.argmin(axis=0), np.arange(steps.shape[1])]
    exchange_s, node_s, network_s = (last[f"{n}_s"] for n in ("communication", "node", "network"))
    if num_nodes == 1:
        node_s, network_s = np.ones_like(node_s), np.zeros_like(node_s)
    is_told = node_s + network_s > 0  # not where they are NaN
    share = network_s[is_told] / (node_s + network_s)[is_told]
    untold_s = exchange_s[~is_told].sum()
    step_s = sum(fmean(sum(rank.parts_s) for rank in ranks) for ranks in epochs)
    sent, is_formula = _bytes_between(epochs)
    return LinkShares(
        step_s=step_s / len(last),
        node=None if untold_s else float((exchange_s[is_told] * (1 - share)).sum() / step_s),
        network=None if untold_s else float((exchange_s[is_told] * share).sum() / step_s),
        untold=float(untold_s / step_s) if untold_s else None,
        waiting=float((communication_s.mean(axis=0) - exchange_s).sum() / step_s),
        network_bytes=None if sent is None else sent / len(last) / num_nodes,
        is_formula=is_formula,
    )


def _bytes_between(epochs: Sequence[Sequence[RankEpoch]]) -> tuple[int | None, bool]:
    """Return the bytes that went between nodes, None where they were not counted, and whether more
    than sums of a few values are by formula."""
    events = [rank.event for ranks in epochs for rank in ranks]
    sent = [event.network_sent_bytes for event in events]
    known = [num_bytes for num_bytes in sent if num_bytes is not None]
    formula = sum(event.formula_bytes or 0 for event in events)
    is_formula = formula > FORMULA_SHARE * sum(event.sent_bytes or 0 for event in events)
    return (sum(known) if len(known) == len(sent) else None), is_formula
