"""The rows behind the charts: what is saved as CSV, so names carry their unit. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from phalanx.report.charts.figure import Row
from phalanx.report.comparison import Cell, ParallelLayout, layout_of
from phalanx.report.measures import EpochMeasure, RunMeasure
from phalanx.report.rank_measures import PARTS

MOST_EPOCHS = 12
"""Of a run by itself, that have a bar each."""


def layout_row(layout: ParallelLayout) -> dict[str, str | int | float | bool | None]:
    return {
        "configuration": layout.label,
        "strategy": layout.strategy,
        "ranks": layout.ranks,
        "threads": layout.threads,
        "workers": layout.workers,
        "width": layout.width,
        "batch_size": layout.batch_size,
        "batch": layout.batch_label,
        # Lines join what differs in the number of workers only.
        "line": layout.strategy
        if layout.strategy == "sequential"
        else f"{layout.strategy}, {layout.threads} a rank",
    }


def cell_rows(cells: Iterable[Cell]) -> list[Row]:
    """One row a configuration."""
    return [
        {
            **layout_row(cell.layout),
            "epoch_s": cell.epoch_s,
            "epoch_s_low": min(cell.epoch_times_s),
            "epoch_s_high": max(cell.epoch_times_s),
            "images_per_s": cell.images_per_s,
            "cores": cell.cores,
            "speed_up": cell.speed_up,
            "speed_up_low": cell.speed_up_interval.low if cell.speed_up_interval else None,
            "speed_up_high": cell.speed_up_interval.high if cell.speed_up_interval else None,
            "efficiency": cell.efficiency,
            "communication_share": cell.communication_share,
            "accuracy": cell.accuracy.mean if cell.accuracy else None,
            "accuracy_low": cell.accuracy.low if cell.accuracy else None,
            "accuracy_high": cell.accuracy.high if cell.accuracy else None,
            "seeds": cell.accuracy.seeds if cell.accuracy else 0,
        }
        for cell in cells
    ]


def epoch_rows(runs: Iterable[RunMeasure]) -> list[Row]:
    """One row an epoch of a configuration, mean over its seeds. Runs that were not completed have
    rows of their own."""
    groups: dict[tuple[ParallelLayout, str], list[RunMeasure]] = {}
    for measure in runs:
        if measure.run and measure.trained:
            own = "completed" if measure.status == "completed" else measure.name
            groups.setdefault((layout_of(measure.run), own), []).append(measure)
    return [
        {
            "curve": group[0].name if len(group) == 1 else f"{layout.label}, {len(group)} runs",
            **layout_row(layout),
            "status": group[0].status,
            "runs": len(group),
            **_mean_epoch(epochs),
        }
        for (layout, _), group in groups.items()
        for epochs in zip(*(measure.trained for measure in group), strict=False)
    ]


def _mean_epoch(epochs: Sequence[EpochMeasure]) -> dict[str, str | int | float | bool | None]:
    """The same epoch of several runs."""
    return {
        "epoch": epochs[0].epoch + 1,
        "trained_s": fmean(epoch.trained_s for epoch in epochs),
        "epoch_s": fmean(epoch.epoch_s for epoch in epochs),
        "train_loss": mean_known(epoch.train_loss for epoch in epochs),
        "validation_loss": mean_known(epoch.validation_loss for epoch in epochs),
        "validation_accuracy": mean_known(epoch.validation_accuracy for epoch in epochs),
    }


def mean_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def part_rows(cells: Iterable[Cell]) -> list[Row]:
    """One row a part of a configuration's mean step, laid end to end. Times in milliseconds."""
    rows: list[Row] = []
    for cell in cells:
        start_ms = 0.0
        for part, part_s in zip(PARTS, cell.step_parts_s or (), strict=bool(cell.step_parts_s)):
            end_ms = start_ms + part_s * 1e3
            rows.append(
                {
                    **layout_row(cell.layout),
                    "bar": f"{cell.layout.strategy} {cell.layout.width}",
                    "part": part,
                    "letter": part[0].upper(),
                    "part_ms": part_s * 1e3,
                    "share": part_s / sum(cell.step_parts_s or (1.0,)),
                    "start_ms": start_ms,
                    "end_ms": end_ms,
                }
            )
            start_ms = end_ms
    return rows


def overlap_rows(runs: Sequence[RunMeasure]) -> list[Row]:
    """One row a part of a bar, in milliseconds of a mean step: a bar a run, or of a run by itself
    a bar an epoch."""
    rows: list[Row] = []
    known = [measure for measure in runs if measure.run and measure.overlap]
    for measure in known:
        bars = {measure.name: measure.overlap} if measure.overlap else {}
        if len(known) == 1 and 1 < len(measure.overlaps) <= MOST_EPOCHS:
            bars = {f"epoch {epoch + 1}": overlap for epoch, overlap in measure.overlaps.items()}
        if measure.run is None:
            continue
        for bar, overlap in bars.items():
            start_s = 0.0
            for kind, took_s in (("hidden", overlap.hidden_s), ("exposed", overlap.exposed_s)):
                rows.append(
                    {
                        "bar": bar,
                        **layout_row(layout_of(measure.run)),
                        "run": measure.name,
                        "kind": kind,
                        "time_ms": 1e3 * took_s,
                        "start_ms": 1e3 * start_s,
                        "end_ms": 1e3 * (start_s + took_s),
                        "hideable_ms": 1e3 * overlap.hideable_s,
                        "last_bucket_ms": 1e3 * overlap.last_bucket_s,
                        "backward_ms": 1e3 * overlap.backward_s,
                    }
                )
                start_s += took_s
    return rows


def metric_rows(runs: Iterable[RunMeasure]) -> list[Row]:
    """One row a value that a program has logged."""
    return [
        {
            "run": measure.name,
            **layout_row(layout_of(measure.run)),
            "metric": name,
            "step": event.step + 1,
            "value": value,
        }
        for measure in runs
        if measure.run
        for rank in measure.ranks.values()  # rank 0 or, after its death, the next
        for event in rank.metrics
        for name, value in event.metrics.items()
    ]


def rank_rows(runs: Sequence[RunMeasure]) -> list[Row]:
    """One row an epoch of a rank."""
    return [
        {
            "run": measure.name,
            **layout_row(layout_of(measure.run)),
            "rank": rank,
            "epoch": epoch + 1,
            "samples": entry.event.samples,
            "train_s": entry.event.train_s,
            "train_loss": entry.train_loss,
            "train_accuracy": entry.train_accuracy,
        }
        for measure in runs
        if measure.run
        for rank, ranked in measure.ranks.items()
        for epoch, entry in sorted(ranked.epochs.items())
    ]
