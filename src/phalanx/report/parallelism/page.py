"""The parts of the page of a parallelism study."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from phalanx.report.charts.figure import Figure
from phalanx.report.collectives.charts import call_time
from phalanx.report.collectives.tables import result_tables
from phalanx.report.content import Content, KeyFigure, machine
from phalanx.report.format import percent, seconds, span
from phalanx.report.parallelism import charts, costs
from phalanx.report.parallelism.finding_sentences import faster_than
from phalanx.report.parallelism.findings import findings, headline
from phalanx.report.parallelism.pipelines import bubble_words, pipeline
from phalanx.report.parallelism.scratch import (
    epoch_by_workers,
    loss_by_workers,
    schemes_of,
    with_alone,
)
from phalanx.report.parallelism.study_data import (
    ModelData,
    ParallelCell,
    ParallelismStudyData,
    read_study_data,
)
from phalanx.report.parallelism.tables import all_tables
from phalanx.report.schemes import group_of, makes_the_same_update, scheme_phrase
from phalanx.report.sections import Panel, Row, Section
from phalanx.report.tables import environments, executions

KIND = "parallelism"
PANELS_BESIDE = 2

Drawn = tuple[str, Figure | None]
"""A panel's label, and its chart where the records allow one."""
ByCells = Callable[[Sequence[ParallelCell], str], Figure | None]


def parallelism_content(folder: Path) -> Content:
    """Raises: UserError when the records cannot be read."""
    return content_of(read_study_data(folder))


def content_of(data: ParallelismStudyData) -> Content:
    """Return the content of a parallelism study's page."""
    measures = data.measures
    known = [measure.run.environment for measure in measures.runs if measure.run]
    return Content(
        title=measures.study.study,
        kind=KIND,
        started_at=measures.study.started_at,
        command=measures.study.command,
        headline=headline(data),
        lead=_lead(data, machine(known)),
        key_figures=[figure for model in data.models for figure in key_figures(model)],
        leading=_row(
            (model.label, charts.overview(model, f"overview-{number}"))
            for number, model in enumerate(data.models, 1)
        ),
        topics=findings(data),
        sections=sections(data),
        tables=[
            *all_tables(data),
            *result_tables(data.algorithms),
            executions(measures.runs),
        ],
        environment=environments(known),
        num_panels=PANELS_BESIDE,
    )


def key_figures(model: ModelData) -> list[KeyFigure]:
    """The scheme with the shortest epoch, and what it gains where that can be told."""
    others = [cell for cell in model.cells if cell.scheme != "sequential"]
    if not others:
        return []
    best = min(others, key=lambda cell: cell.cell.epoch_s)
    alone = model.sequential
    interval = faster_than(alone, best, len(others)) if alone else None
    accuracy = best.cell.accuracy
    beside = f"{seconds(best.cell.epoch_s)} an epoch"
    beside += f", {percent(accuracy.mean, 2)} accuracy" if accuracy else ""
    return [
        KeyFigure(
            label=model.label,
            value=seconds(best.cell.epoch_s)
            if interval is None
            else f"{interval.estimate:.2f}\N{MULTIPLICATION SIGN} ({span(interval)})",
            meaning=f"{scheme_phrase(best.scheme)} on {best.ranks} ranks",
            beside=beside,
        )
    ]


def sections(data: ParallelismStudyData) -> tuple[Section, ...]:
    """Return the sections with all charts that the records allow."""
    made = (
        (
            "scaling",
            "Time",
            _grouped(data, ("speed-up", charts.speed_up), ("waiting", costs.waiting)),
        ),
        (
            "learning",
            "Loss",
            _grouped(data, ("loss-step", _loss_by_step), ("loss-time", _loss_by_time)),
        ),
        ("bytes", "Bytes and memory, beside their formulas", _costs(data)),
        ("staleness", "Staleness", [_row(_staleness(data))]),
        ("pipelines", "Pipelines", [_row(_pipelines(data))]),
        ("scratch", "A network from scratch, up to many workers", _scratch(data)),
        ("algorithms", "All-reduce on messages", _algorithms(data)),
    )
    found = [
        Section(name=name, title=title, rows=tuple(row for row in rows if row))
        for name, title, rows in made
    ]
    return tuple(section for section in found if section.rows)


def _grouped(data: ParallelismStudyData, *drawn: tuple[str, ByCells]) -> list[Row | None]:
    """A row for each chart, in it a panel for each model and group of schemes: with the sequential
    program, and each scheme on its largest number of ranks where that is all a chart has room
    for."""
    return [
        _row(
            (f"{model.label}: {group.title}", draw(_with_alone(model, model.of(group)), name))
            for model_number, model in enumerate(data.models, 1)
            for group in model.groups
            if (name := f"{chart}-{model_number}-{group.name}")
        )
        for chart, draw in drawn
    ]


def _loss_by_step(cells: Sequence[ParallelCell], name: str) -> Figure | None:
    return charts.loss_by_step(_largest(cells), name)


def _loss_by_time(cells: Sequence[ParallelCell], name: str) -> Figure | None:
    return charts.loss_by_time(_largest(cells), name)


def _costs(data: ParallelismStudyData) -> list[Row | None]:
    return _grouped(data, ("sent", costs.sent), ("memory", costs.memory))


def _staleness(data: ParallelismStudyData) -> Iterable[Drawn]:
    for number, model in enumerate(data.models, 1):
        for cell in model.cells:
            if not makes_the_same_update(cell.scheme):
                name = f"staleness-{number}-{_word(cell.scheme)}-{cell.ranks}"
                yield f"{model.label}: {cell.label}", costs.staleness(cell, name)


def _pipelines(data: ParallelismStudyData) -> Iterable[Drawn]:
    """Each schedule on its largest number of ranks."""
    for number, model in enumerate(data.models, 1):
        for cell in _largest(model.cells):
            name = f"pipeline-{number}-{_word(cell.scheme)}"
            drawn = pipeline(cell, name)
            if drawn:
                yield f"{model.label}: {cell.label}: {bubble_words(cell)}", drawn


def _scratch(data: ParallelismStudyData) -> list[Row | None]:
    cells = data.scratch
    drawn: tuple[tuple[str, ByCells], ...] = (
        ("scratch-time", epoch_by_workers),
        ("scratch-loss", loss_by_workers),
    )
    return [
        _row(
            (scheme, draw(with_alone(cells, scheme), f"{chart}-{number}"))
            for number, scheme in enumerate(schemes_of(cells), 1)
        )
        for chart, draw in drawn
    ]


def _algorithms(data: ParallelismStudyData) -> list[Row | None]:
    drawn = (
        (f"{results.title}, {results.ranks} ranks", call_time(results, f"algorithms-{number}"))
        for number, results in enumerate(data.algorithms, 1)
    )
    return [_row(drawn)]


def _row(drawn: Iterable[Drawn]) -> Row | None:
    panels = tuple(Panel(label=label, figure=figure) for label, figure in drawn if figure)
    if not panels:
        return None
    first = panels[0].figure
    return Row(title=first.title, caption=first.caption, panels=panels)


def _with_alone(model: ModelData, cells: Sequence[ParallelCell]) -> list[ParallelCell]:
    return [*([model.sequential] if model.sequential else []), *cells]


def _largest(cells: Sequence[ParallelCell]) -> list[ParallelCell]:
    """Return each scheme's cell with the most ranks."""
    best: dict[str, ParallelCell] = {}
    for cell in cells:
        if cell.scheme not in best or cell.ranks > best[cell.scheme].ranks:
            best[cell.scheme] = cell
    return list(best.values())


def _lead(data: ParallelismStudyData, where: str) -> str:
    measures = data.measures
    completed = sum(measure.status == "completed" for measure in measures.runs)
    schemes = {cell.scheme for model in data.models for cell in model.cells}
    groups = {group.name for scheme in schemes if (group := group_of(scheme))}
    parts = [f"{completed} of {len(measures.runs)} runs completed"]
    parts += [f"{len(schemes)} schemes of {len(groups)} kinds"] if schemes else []
    parts += [where] if where else []
    return f"{', '.join(parts)}."


def _word(scheme: str) -> str:
    """Return a word for the name of an element and a file."""
    return "".join(letter if letter.isalnum() else "-" for letter in scheme)
