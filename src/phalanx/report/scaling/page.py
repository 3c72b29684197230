"""The page of a scaling study, of a run, or of runs that belong to no study: its content."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from phalanx.report.charts import learning, network, scaling
from phalanx.report.charts.figure import Figure
from phalanx.report.comparison import (
    Cell,
    TrainingWorkload,
    main_batch,
    on_fewest_nodes,
    sequential_reference,
    speed_up,
    workload_labels,
    workload_of,
)
from phalanx.report.content import (
    Content,
    KeyFigure,
    Row,
    chart_row,
    sections,
    speed_figure,
    with_rows,
)
from phalanx.report.disturbance import disturbance_note
from phalanx.report.folder import StudyMeasures
from phalanx.report.format import capitals, percent, seconds
from phalanx.report.measures import RunMeasure
from phalanx.report.published.beside import beside_published
from phalanx.report.scaling.findings import findings, headline, rate_words, scaling_cells
from phalanx.report.scaling.network import link_table
from phalanx.report.study_content import outcomes, study_content
from phalanx.report.tables import baselines, configurations, executions

KIND = "scaling"


@dataclass(frozen=True, kw_only=True)
class WorkloadData:
    """Cells and runs that the charts of one workload are drawn from."""

    label: str
    cells: tuple[Cell, ...]  # at the batch size that most of them share
    every_batch: tuple[Cell, ...]
    runs: tuple[RunMeasure, ...]  # at that batch size, also incomplete runs


CHARTS: dict[str, Callable[[WorkloadData, str], Figure | None]] = {
    "speed-up": lambda m, name: scaling.SPEED_UP(m.cells, name),
    "efficiency": lambda m, name: scaling.EFFICIENCY(m.cells, name),
    "epoch-time": lambda m, name: scaling.EPOCH_TIME(m.cells, name),
    "step": lambda m, name: scaling.STEP_PARTS(m.cells, name),
    "communication": lambda m, name: scaling.COMMUNICATION_SHARE(m.cells, name),
    "links": lambda m, name: network.LINK_SHARES(_at_main_batch(m.every_batch), name),
    "overlap": lambda m, name: scaling.HIDDEN_AND_EXPOSED(m.runs, name),
    "metrics": lambda m, name: learning.METRICS(m.runs, name),
    "train-loss": lambda m, name: learning.TRAINING_LOSS(_without_validation(m.runs), name),
    "loss": lambda m, name: learning.VALIDATION_LOSS(m.runs, name),
    "accuracy": lambda m, name: learning.VALIDATION_ACCURACY(m.runs, name),
    "time-accuracy": lambda m, name: learning.TIME_AND_ACCURACY(m.cells, name),
    "batch-time": lambda m, name: scaling.BATCH_AND_TIME(m.every_batch, name),
    "batch-accuracy": lambda m, name: scaling.BATCH_AND_ACCURACY(m.every_batch, name),
    "rank-loss": lambda m, name: learning.RANK_LOSS(m.runs, name),
    "rank-accuracy": lambda m, name: learning.RANK_ACCURACY(m.runs, name),
}
LEADING = ("speed-up", "accuracy", "train-loss")
"""The first of these that can be drawn is on the first screen."""
SECTIONS = (
    ("scaling", "Time and scaling", ("speed-up", "efficiency", "epoch-time")),
    ("where", "Where the time goes", ("step", "communication", "overlap")),
    ("network", "Network", ("links",)),
    (
        "learning",
        "Loss and accuracy",
        ("metrics", "train-loss", "loss", "accuracy", "time-accuracy"),
    ),
    ("batch", "Batch size", ("batch-time", "batch-accuracy")),
    ("ranks", "Rank by rank", ("rank-loss", "rank-accuracy")),
)


def scaling_content(measures: StudyMeasures) -> Content:
    """Return the content of the page of a study or of a run."""
    workloads = workload_data(measures)
    rows = {name: _row(name, workloads) for name in CHARTS}
    leading = next((name for name in LEADING if rows[name]), None)
    batches = {group[0].layout.batch_label for group in scaling_cells(measures.cells).values()}
    return study_content(
        measures.study,
        outcomes(measures),
        note=disturbance_note(measures.runs),
        headline=headline(measures),
        facts=[f"batch {' and '.join(sorted(batches))}"] if batches else [],
        key_figures=[figure for workload in workloads if (figure := key_figure(workload))],
        leading=rows.pop(leading) if leading else None,
        topics=findings(measures),
        sections=sections(
            *(
                (name, title, [rows.get(chart) for chart in charts])
                for name, title, charts in SECTIONS
            )
        ),
        tables=with_rows(
            baselines(measures.cells),
            configurations(measures.cells),
            link_table(measures.cells),
            executions(measures.runs),
            *([beside_published(measures.cells)] if measures.study.kind == KIND else []),
        ),
        num_panels=len(workloads),
    )


def _without_validation(runs: Sequence[RunMeasure]) -> list[RunMeasure]:
    """Return the runs of programs, which evaluate for themselves."""
    return [run for run in runs if all(epoch.validation_loss is None for epoch in run.trained)]


def key_figure(workload: WorkloadData) -> KeyFigure | None:
    """The fastest configuration of a workload, and what it gains, if that is significant
    for the fastest of all."""
    if not workload.cells:
        return None
    best = min(workload.cells, key=lambda cell: cell.epoch_s)
    accuracy = [f"{percent(best.accuracy.mean, 2)} accuracy"] if best.accuracy else []
    epoch = f"{seconds(best.epoch_s)} per epoch"
    reference = sequential_reference(best, workload.cells)
    others = len(workload.cells) - 1
    interval = speed_up(reference, best, comparisons=others) if reference else None
    if interval is not None and interval.verdict(1) == "higher":
        phrase = best.layout.phrase
        return speed_figure(workload.label, interval, meaning=phrase, facts=[epoch, *accuracy])
    return KeyFigure(
        label=workload.label,
        value=seconds(best.epoch_s),
        meaning=f"per epoch, {best.layout.phrase}",
        beside=", ".join([*rate_words(best), *accuracy]),
    )


def workload_data(measures: StudyMeasures) -> tuple[WorkloadData, ...]:
    """Return the data of each workload, in the order of the plan."""
    runs: dict[TrainingWorkload, list[RunMeasure]] = {}
    for measure in measures.runs:
        if measure.run and measure.trained:
            runs.setdefault(workload_of(measure.run), []).append(measure)
    labels = workload_labels(runs)
    return tuple(
        _workload_data(capitals(labels[s]), s, group, measures) for s, group in runs.items()
    )


def _workload_data(
    label: str, workload: TrainingWorkload, runs: Sequence[RunMeasure], measures: StudyMeasures
) -> WorkloadData:
    cells = tuple(cell for cell in measures.cells if cell.workload == workload)
    batch = main_batch(cells) if cells else None
    others = {r.name for cell in cells if cell.layout.batch_size != batch for r in cell.runs}
    return WorkloadData(
        label=label,
        cells=tuple(on_fewest_nodes(_at_main_batch(cells))),
        every_batch=cells,
        runs=tuple(measure for measure in runs if measure.name not in others),
    )


def _at_main_batch(cells: Sequence[Cell]) -> list[Cell]:
    batch = main_batch(cells) if cells else None
    return [cell for cell in cells if cell.layout.batch_size == batch]


def _row(chart: str, workloads: Sequence[WorkloadData]) -> Row | None:
    # Names of elements and files are ours; labels come from records and may hold anything.
    return chart_row(
        (workload.label, CHARTS[chart](workload, f"{chart}-{number}"))
        for number, workload in enumerate(workloads, 1)
    )
