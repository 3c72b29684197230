"""Network between nodes in a scaling study: where it begins to cost, and the share of each link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from phalanx.report.cell_links import (
    LINKS,
    bytes_between,
    link_share,
    over_nodes,
    step_time,
)
from phalanx.report.comparison import (
    Cell,
    ParallelLayout,
    by_seed,
    counted,
    speed_up,
    workload_labels,
)
from phalanx.report.content import Column, Table, make_table, words
from phalanx.report.format import amount, percent, ratio, sentence, three_digits
from phalanx.report.measures import RunMeasure
from phalanx.report.statistics import paired_difference
from phalanx.report.tables import LAYOUT, NODES

RULE = (
    "The same ranks on more nodes against fewer: the network begins to cost where the epoch is "
    "seen to be longer. Ranks that fit on no fewer nodes stand against as many per node on fewer. "
    "Exchange between nodes is its part of a mean step, without waiting for "
    "ranks that come later; the table of links has all parts. Intervals are of 95 %."
)


def network_cost(cells: Sequence[Cell]) -> str | None:
    """Return where more nodes for the same ranks cost time, and the share of the network."""
    groups: dict[ParallelLayout, list[Cell]] = {}
    for cell in sorted(cells, key=lambda cell: cell.layout.nodes):
        if not cell.is_sequential:
            groups.setdefault(replace(cell.layout, nodes=1), []).append(cell)
    pairs = [(group[0], cell) for group in groups.values() for cell in group[1:]]
    parts = [_against(fewer, more, comparisons=len(pairs)) for fewer, more in pairs]
    alone = [group[0] for group in groups.values() if len(group) == 1 and group[0].layout.nodes > 1]
    full = {cell.layout: cell for cell in cells}
    parts += filter(None, (_of_full_nodes(cell, full, comparisons=len(alone)) for cell in alone))
    return sentence("; ".join(parts)) if parts else None


def _of_full_nodes(
    cell: Cell, full: Mapping[ParallelLayout, Cell], *, comparisons: int
) -> str | None:
    """Return the worth of more nodes for ranks that fit on no fewer: against as many ranks per node
    on fewer nodes. None where nothing is known."""
    layout, shares = cell.layout, _share_words(cell)
    fewer = (
        replace(layout, ranks=layout.ranks * nodes // layout.nodes, nodes=nodes)
        for nodes in range(1, layout.nodes)
        if layout.ranks * nodes % layout.nodes == 0
    )
    base = next((full[each] for each in fewer if each in full), None)
    if base is None:
        return f"{layout.phrase} was not run on fewer nodes ({shares})" if shares else None
    interval = speed_up(base, cell, comparisons=comparisons)
    facts = "too few epochs" if interval is None else f"{ratio(interval)} as fast"
    nodes = counted(layout.nodes - base.layout.nodes, "more node")
    what = f"{nodes} with as many ranks: {layout.phrase} against {base.layout.phrase}"
    return f"{what} ({', '.join([facts, *([shares] if shares else [])])})"


def link_table(cells: Sequence[Cell]) -> Table:
    """Return a table of the share of a step that each link has."""
    shown = over_nodes(cells)
    labels = workload_labels(cell.workload for cell in shown)
    untold = [] if all(link_share(cell, "untold") is None for cell in shown) else ["untold"]
    links = ["node", "network", *untold, "waiting"]
    return make_table(
        "Links",
        "Of a mean step: exchange in the memory of a node and between nodes, as the rank that "
        "came last to it has measured them, and what the other ranks waited for it, mean over "
        "ranks, with intervals of 95 % over runs. What is hidden behind the backward pass does "
        "not count. Bytes: what a node sends to the others in a step.",
        [
            words("model", lambda cell: labels[cell.workload]),
            *LAYOUT,
            NODES,
            Column("step (ms)", step_time, lambda step_s: three_digits(1e3 * step_s)),
            *(_share_column(link) for link in links),
            Column("sent between nodes", bytes_between, _bytes_words),
        ],
        shown,
    )


def _share_column(link: str) -> Column[Cell]:
    return Column(LINKS[link], lambda cell: link_share(cell, link), lambda share: share.text)


def _bytes_words(found: tuple[float, bool]) -> str:
    num_bytes, is_formula = found
    return f"{amount(num_bytes)} (by formula)" if is_formula else amount(num_bytes)


def _against(fewer: Cell, more: Cell, *, comparisons: int) -> str:
    interval = speed_up(fewer, more, comparisons=comparisons)
    verdict = None if interval is None else interval.verdict(1)
    nodes = counted(fewer.layout.nodes, "node")
    costs = {"lower": f"costs time against {nodes}", "higher": f"is faster than {nodes}"}
    neither = f"does not differ significantly from {nodes}"
    text = f"{more.layout.phrase} {costs.get(verdict or '', neither)}"
    facts = ["too few epochs" if interval is None else f"{ratio(interval)} as fast"]
    shares = _share_words(more) or _added(fewer, more, comparisons=comparisons)
    return f"{text} ({', '.join([*facts, *([shares] if shares else [])])})"


def _share_words(cell: Cell) -> str | None:
    share = link_share(cell, "network")
    return None if share is None else f"exchange between nodes takes {share.text} of a step"


def _added(fewer: Cell, more: Cell, *, comparisons: int) -> str | None:
    """Return what nodes add to communication, where links were not measured."""
    base, shares = (by_seed(cell.runs, _communication) for cell in (fewer, more))
    added = paired_difference(shares, base, comparisons=comparisons)
    if added is None or fewer.layout.nodes > 1:
        return None
    estimate, low, high = (percent(end, 0) for end in (added.estimate, added.low, added.high))
    return (
        f"communication in memory takes {percent(fmean(base.values()), 0)} of the training "
        f"time, the network adds {estimate} ({low} to {high})"
    )


def _communication(run: RunMeasure) -> float | None:
    return run.communication_share
