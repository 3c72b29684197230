"""Charts of each section of the page. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from phalanx.report.charts.batches import batch_and_accuracy, batch_and_time
from phalanx.report.charts.figure import Figure
from phalanx.report.charts.learning import time_and_accuracy, validation_accuracy, validation_loss
from phalanx.report.charts.overlap import hidden_and_exposed
from phalanx.report.charts.ranks import rank_accuracy, rank_loss
from phalanx.report.charts.scaling import communication_share, efficiency, epoch_time, speed_up
from phalanx.report.charts.steps import step_parts
from phalanx.report.comparison import (
    Cell,
    TrainingWorkload,
    main_batch,
    workload_labels,
    workload_of,
)
from phalanx.report.folder import StudyMeasures
from phalanx.report.measures import RunMeasure


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One chart of a row: the same question, for one workload."""

    label: str
    figure: Figure


@dataclass(frozen=True, kw_only=True)
class Row:
    """One question, drawn for every workload."""

    title: str
    caption: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, kw_only=True)
class Section:
    name: str
    title: str
    rows: tuple[Row, ...]

    @property
    def single(self) -> bool:
        """Return whether every row has one chart, so that rows can stand beside one another."""
        return all(len(row.panels) == 1 for row in self.rows)


@dataclass(frozen=True, kw_only=True)
class WorkloadData:
    """Cells and runs that the charts of one workload are drawn from."""

    label: str
    cells: tuple[Cell, ...]  # at the batch size that most of them share
    every_batch: tuple[Cell, ...]
    runs: tuple[RunMeasure, ...]  # at that batch size, also incomplete runs


Draw = Callable[[WorkloadData, str], Figure | None]

LEADING: tuple[tuple[str, Draw], ...] = (
    ("speed-up", lambda m, name: speed_up(m.cells, name)),
    ("accuracy", lambda m, name: validation_accuracy(m.runs, name)),
)
SECTIONS: tuple[tuple[str, str, tuple[tuple[str, Draw], ...]], ...] = (
    (
        "scaling",
        "Time and scaling",
        (
            ("speed-up", lambda m, name: speed_up(m.cells, name)),
            ("efficiency", lambda m, name: efficiency(m.cells, name)),
            ("epoch-time", lambda m, name: epoch_time(m.cells, name)),
        ),
    ),
    (
        "where",
        "Where the time goes",
        (
            ("step", lambda m, name: step_parts(m.cells, name)),
            ("communication", lambda m, name: communication_share(m.cells, name)),
            ("overlap", lambda m, name: hidden_and_exposed(m.runs, name)),
        ),
    ),
    (
        "learning",
        "Loss and accuracy",
        (
            ("loss", lambda m, name: validation_loss(m.runs, name)),
            ("accuracy", lambda m, name: validation_accuracy(m.runs, name)),
            ("time-accuracy", lambda m, name: time_and_accuracy(m.cells, name)),
        ),
    ),
    (
        "batch",
        "Batch size",
        (
            ("batch-time", lambda m, name: batch_and_time(m.every_batch, name)),
            ("batch-accuracy", lambda m, name: batch_and_accuracy(m.every_batch, name)),
        ),
    ),
    (
        "ranks",
        "Rank by rank",
        (
            ("rank-loss", lambda m, name: rank_loss(m.runs, name)),
            ("rank-accuracy", lambda m, name: rank_accuracy(m.runs, name)),
        ),
    ),
)


def leading_row(workloads: Sequence[WorkloadData]) -> tuple[str, Row] | None:
    """The chart for the first screen, with its name: the first of LEADING that can be drawn."""
    for name, draw in LEADING:
        if row := _row(name, draw, workloads):
            return name, row
    return None


def sections(workloads: Sequence[WorkloadData], *, without: str | None) -> tuple[Section, ...]:
    """Return all charts that the records allow, but the one called `without`."""
    made = []
    for name, title, charts in SECTIONS:
        drawn = [_row(chart, draw, workloads) for chart, draw in charts if chart != without]
        rows = tuple(row for row in drawn if row)
        if rows:
            made.append(Section(name=name, title=title, rows=rows))
    return tuple(made)


def workload_data(measures: StudyMeasures) -> tuple[WorkloadData, ...]:
    """Return the data of each workload, in the order of the plan."""
    runs: dict[TrainingWorkload, list[RunMeasure]] = {}
    for measure in measures.runs:
        if measure.run and measure.trained:
            runs.setdefault(workload_of(measure.run), []).append(measure)
    labels = workload_labels(runs)
    return tuple(_workload_data(labels[s].upper(), s, group, measures) for s, group in runs.items())


def _workload_data(
    label: str, workload: TrainingWorkload, runs: Sequence[RunMeasure], measures: StudyMeasures
) -> WorkloadData:
    cells = tuple(cell for cell in measures.cells if cell.workload == workload)
    batch = main_batch(cells) if cells else None
    others = {r.name for cell in cells if cell.layout.batch_size != batch for r in cell.runs}
    return WorkloadData(
        label=label,
        cells=tuple(cell for cell in cells if cell.layout.batch_size == batch),
        every_batch=cells,
        runs=tuple(measure for measure in runs if measure.name not in others),
    )


def _row(chart: str, draw: Draw, workloads: Sequence[WorkloadData]) -> Row | None:
    panels = []
    for number, workload in enumerate(workloads, 1):
        # Names of elements and files are ours; labels come from records and may hold anything.
        if drawn := draw(workload, f"{chart}-{number}"):
            panels.append(Panel(label=workload.label, figure=drawn))
    if not panels:
        return None
    first = panels[0].figure
    return Row(title=first.title, caption=first.caption, panels=tuple(panels))
