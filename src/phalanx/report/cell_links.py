"""Shares of a step by link, of the runs of a cell, each with its interval. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from phalanx.report.comparison import Cell
from phalanx.report.format import percent
from phalanx.report.statistics import Interval, mean_interval

LINKS: Mapping[str, str] = {
    "node": "in the node",
    "network": "between nodes",
    "untold": "link not measured",
    "waiting": "waiting for others",
}
"""Fields of `LinkShares`, in words."""


@dataclass(frozen=True, kw_only=True)
class LinkShare:
    """Share of a mean step, the mean over runs."""

    estimate: float
    interval: Interval | None  # None with a single run

    @property
    def low(self) -> float | None:
        return None if self.interval is None else max(0.0, self.interval.low)

    @property
    def high(self) -> float | None:
        return None if self.interval is None else min(1.0, self.interval.high)

    @property
    def text(self) -> str:
        """31.4 % (28.0 to 34.8), or 31.4 % (one run)."""
        if self.low is None or self.high is None:
            return f"{percent(self.estimate, 1)} (one run)"
        return f"{percent(self.estimate, 1)} ({100 * self.low:.1f} to {100 * self.high:.1f})"


def link_share(cell: Cell, link: str) -> LinkShare | None:
    """Return a share of the cell's mean step; None where a run has not measured it. link: a key of
    LINKS."""
    known = [getattr(run.links, link) for run in cell.runs if run.links is not None]
    if not known or None in known or len(known) < len(cell.runs):
        return None
    return LinkShare(estimate=fmean(known), interval=mean_interval(known))


def step_time(cell: Cell) -> float | None:
    """Return the seconds of a mean step."""
    known = [run.links.step_s for run in cell.runs if run.links is not None]
    return fmean(known) if known else None


def bytes_between(cell: Cell) -> tuple[float, bool] | None:
    """Return the bytes that a node sends to others in a step, and whether by formula; None where
    they were not counted."""
    links = [run.links for run in cell.runs if run.links is not None]
    known = [each.network_bytes for each in links if each.network_bytes is not None]
    if not known or len(known) < len(cell.runs):
        return None
    return fmean(known), any(each.is_formula for each in links)


def over_nodes(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells whose ranks exchange in step, where some have several nodes; else none."""
    known = [cell for cell in cells if link_share(cell, "waiting") is not None]
    return known if any(cell.layout.nodes > 1 for cell in known) else []
