"""Rows of what trainings are made of: epochs, parts of a step, ranks, links, metrics. Pure.

They are what charts are drawn from and what is saved as CSV, so names carry their unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from phalanx.report.cells import Measure, Row
from phalanx.report.measures import EpochMeasure, RunMeasure
from phalanx.report.rank_measures import PARTS
from phalanx.report.training import measures_of
from phalanx.report.values import View

MOST_EPOCHS = 12
"""Epochs of a run by itself that have a bar each."""
LINKS = {
    "node": "in the node",
    "network": "between nodes",
    "untold": "link not measured",
    "waiting": "waiting for others",
}
"""Fields of `LinkShares`, in words."""


def trained_runs(view: View) -> list[tuple[Row, RunMeasure]]:
    """Return the runs that have finished an epoch, also those that did not come to their end."""
    found = [(row, row["_measure"]) for row in view.data.runs]
    return [
        (row, run) for row, run in found if run.run and run.trained and row["panel"] is not None
    ]


def epoch_rows(view: View) -> list[Row]:
    """Return a row an epoch of a configuration, mean over its seeds. Runs that were not completed
    have rows of their own."""
    groups: dict[Any, list[tuple[Row, RunMeasure]]] = {}
    for row, run in trained_runs(view):
        own = "completed" if run.status == "completed" else run.name
        groups.setdefault((row["panel"], row["cell"], own), []).append((row, run))
    rows: list[Row] = []
    for group in groups.values():
        first, names = group[0][0], [run.name for _, run in group]
        is_validated = any(e.validation_loss is not None for _, run in group for e in run.trained)
        curve = names[0] if len(names) == 1 else f"{first['configuration']}, {len(names)} runs"
        for epochs in zip(*(run.trained for _, run in group), strict=False):
            head = {**first, "curve": curve}
            head["is_validated"] = is_validated
            rows.append({**head, "runs": len(group), "_runs": names, **_mean_epoch(epochs)})
    return rows


def _mean_epoch(epochs: Sequence[EpochMeasure]) -> dict[str, float | None]:
    """Return the mean of the same epoch of several runs."""
    known = {
        name: [value for epoch in epochs if (value := getattr(epoch, name)) is not None]
        for name in ("trained_s", "epoch_s", "train_loss", "validation_loss", "validation_accuracy")
    }
    means = {name: fmean(values) if values else None for name, values in known.items()}
    return {"epoch": epochs[0].epoch + 1, **means}


def part_rows(view: View) -> list[Row]:
    """Return a row a part of a configuration's mean step, in milliseconds, laid end to end."""
    rows: list[Row] = []
    for cell in view.frame("cells"):
        known = [run.step_parts_s for run in measures_of(cell) if run.step_parts_s]
        if not known:
            continue
        means = [fmean(parts[i] for parts in known) for i in range(len(PARTS))]
        start_ms = 0.0
        for part, part_s in zip(PARTS, means, strict=True):
            row = {**cell, "bar": f"{cell['strategy']} {cell['width']}", "part": part}
            row |= {"letter": part[0].upper(), "part_ms": part_s * 1e3}
            row |= {"share": part_s / sum(means), "_runs": cell["_runs"]}
            rows.append({**row, "start_ms": start_ms, "end_ms": start_ms + part_s * 1e3})
            start_ms += part_s * 1e3
    return rows


def overlap_rows(view: View) -> list[Row]:
    """Return a row a part of a bar, in milliseconds of a mean step: a bar a run, or of a run by
    itself a bar an epoch."""
    rows: list[Row] = []
    found = [(row, run) for row, run in trained_runs(view) if run.overlap and row["shown"]]
    for row, run in found:
        bars = {run.name: run.overlap} if run.overlap else {}
        alone = sum(other["panel"] == row["panel"] for other, _ in found) == 1
        if alone and 1 < len(run.overlaps) <= MOST_EPOCHS:
            bars = {f"epoch {epoch + 1}": overlap for epoch, overlap in run.overlaps.items()}
        for bar, overlap in bars.items():
            start_s = 0.0
            for kind, took_s in (("hidden", overlap.hidden_s), ("exposed", overlap.exposed_s)):
                times = {
                    "time_ms": took_s,
                    "start_ms": start_s,
                    "end_ms": start_s + took_s,
                    "hideable_ms": overlap.hideable_s,
                }
                head = {**row, "bar": bar, "kind": kind}
                rows.append(head | {name: 1e3 * value_s for name, value_s in times.items()})
                start_s += took_s
    return rows


def metric_rows(view: View) -> list[Row]:
    """Return a row a value that a program has logged."""
    return [
        {**row, "metric": name, "step": event.step + 1, "value": value}
        for row, run in trained_runs(view)
        for rank in run.ranks.values()  # rank 0 or, after its death, the next
        for event in rank.metrics
        for name, value in event.metrics.items()
    ]


def rank_rows(view: View) -> list[Row]:
    """Return a row an epoch of a rank, of runs on several; that on the most ranks first."""
    found = [(row, run) for row, run in trained_runs(view) if len(run.ranks) > 1 and row["shown"]]
    return [
        {
            **row,
            "rank": rank,
            "epoch": epoch + 1,
            "samples": entry.event.samples,
            "train_s": entry.event.train_s,
            "train_loss": entry.train_loss,
            "train_accuracy": entry.train_accuracy,
        }
        for row, run in sorted(found, key=lambda pair: -pair[0]["ranks"])
        for rank, ranked in run.ranks.items()
        for epoch, entry in sorted(ranked.epochs.items())
    ]


BETWEEN = Measure(column="link_network", how=fmean, interval="mean", whole=True)
LINK_QUANTITIES = (
    *(replace(BETWEEN, column=f"link_{name}") for name in LINKS),
    Measure(column="link_step_s", how=fmean),
    replace(BETWEEN, column="link_network_bytes"),
    Measure(column="link_is_formula", how=max),
)


def linked_cells(view: View) -> list[Row]:
    """Return the configurations whose shares of links were measured, where some have several
    nodes."""
    cells = view.measured(LINK_QUANTITIES)
    found = [cell for cell in cells if cell["main"] and cell["link_waiting"] is not None]
    return found if any(cell["nodes"] > 1 for cell in found) else []


def link_rows(view: View) -> list[Row]:
    """Return a row a link of these configurations."""
    rows: list[Row] = []
    for cell in linked_cells(view):
        for link, words in LINKS.items():
            share, low, high = (cell[f"link_{link}{end}"] for end in ("", "_low", "_high"))
            if share is not None:
                row = {**cell, "link": words, "share": share}
                row["share_low"] = None if low is None else max(0.0, low)
                row["share_high"] = None if high is None else min(1.0, high)
                row["step_ms"] = 1e3 * cell["link_step_s"]
                rows.append({**row, "runs": len(cell["_runs"]), "_runs": cell["_runs"]})
    return rows


FRAMES = {
    "epochs": epoch_rows,
    "parts": part_rows,
    "overlap": overlap_rows,
    "metrics": metric_rows,
    "ranks": rank_rows,
    "links": link_rows,
    "linked": linked_cells,
}
"""Rows of every training, by name."""
