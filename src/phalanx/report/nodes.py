"""The claim about nodes: where the same ranks on more nodes take longer, and why. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import fmean

from phalanx.report.cells import Cell, CellPanel, Measure
from phalanx.report.claims import CellClaim, compared, mean_share
from phalanx.report.format import ends, whole_percent
from phalanx.report.training_frames import BETWEEN
from phalanx.report.training_page import COMMUNICATION
from phalanx.report.values import Told


@dataclass(frozen=True, kw_only=True)
class MoreNodes(CellClaim):
    """The same ranks on more nodes against fewer, and what the exchange between nodes takes."""

    measure: Measure

    def of(self, panel: CellPanel) -> Iterator[Told]:
        groups: dict[object, list[Cell]] = {}
        for cell in sorted(panel.cells, key=lambda cell: cell["nodes"]):
            if cell["strategy"] != "sequential":
                groups.setdefault(cell["on_one_node"], []).append(cell)
        pairs = [(group[0], cell) for group in groups.values() for cell in group[1:]]
        for fewer, more in pairs:
            yield self._told(more, fewer, len(pairs))
        alone = [g[0] for g in groups.values() if len(g) == 1 and g[0]["nodes"] > 1]
        for cell in alone:
            base = self._with_full_nodes(cell, panel)
            if base is not None:
                yield self._told(cell, base, len(alone))
            elif share := exchange_between(cell):
                yield Told(text=f"{self.name(cell)} was not run on fewer nodes: {share}")

    def _with_full_nodes(self, cell: Cell, panel: CellPanel) -> Cell | None:
        """Return the cell with as many ranks per node on fewer nodes."""
        for nodes in range(1, cell["nodes"]):
            ranks, rest = divmod(cell["ranks"] * nodes, cell["nodes"])
            same = {name: cell[name] for name in ("strategy", "threads", "batch_size")}
            wanted = {**same, "ranks": ranks, "nodes": nodes}
            found = [other for other in panel.cells if other.matches(wanted)] if not rest else []
            if found:
                return found[0]
        return None

    def _told(self, more: Cell, fewer: Cell, comparisons: int) -> Told:
        names = self.name(more), self.name(fewer)
        told = compared(self.measure, more, fewer, names, comparisons)
        share = exchange_between(more) or added_communication(more, fewer, comparisons)
        return replace(told, text="; ".join(filter(None, [told.text, share])))


def exchange_between(cell: Cell) -> str:
    """Return the share of a step that the exchange between nodes takes, in words; empty where a run
    has not measured it."""
    known = BETWEEN.known(cell)
    return f"exchange between nodes takes {mean_share(known)} of a step" if known else ""


def added_communication(more: Cell, fewer: Cell, comparisons: int) -> str:
    """Return what nodes add to communication, where links were not measured; empty where that
    cannot be told."""
    added = COMMUNICATION.difference(more, fewer, comparisons)
    if added is None or fewer["nodes"] > 1:
        return ""
    base = whole_percent(fmean(fewer.by_seed("communication").values()))
    return (
        f"communication in memory takes {base} of the training time, the network adds "
        f"{whole_percent(added.estimate)} ({ends(added, whole_percent)})"
    )
