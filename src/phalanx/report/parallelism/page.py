"""The page of a parallelism study: what it is made of."""

from __future__ import annotations

from collections.abc import Iterable

from phalanx.report.collectives.charts import call_time
from phalanx.report.collectives.tables import result_table
from phalanx.report.content import (
    Content,
    Drawn,
    KeyFigure,
    Row,
    Section,
    chart_row,
    sections,
    speed_figure,
)
from phalanx.report.disturbance import disturbance_note
from phalanx.report.folder import StudyMeasures
from phalanx.report.format import percent, seconds
from phalanx.report.parallelism import charts, costs
from phalanx.report.parallelism.findings import faster_than, findings, headline
from phalanx.report.parallelism.study_data import (
    ModelData,
    ParallelismStudyData,
    largest,
    read_study_data,
    scratch_schemes,
    with_alone,
)
from phalanx.report.parallelism.tables import all_tables
from phalanx.report.schemes import group_of, makes_the_same_update, scheme_phrase
from phalanx.report.study_content import outcomes, study_content
from phalanx.report.tables import executions


def parallelism_content(measures: StudyMeasures) -> Content:
    """Raises: UserError when the records cannot be read."""
    return content_of(read_study_data(measures.folder, measures))


def content_of(data: ParallelismStudyData) -> Content:
    """Return the content of a parallelism study's page."""
    schemes = {cell.scheme for model in data.models for cell in model.cells}
    groups = {group.name for scheme in schemes if (group := group_of(scheme))}
    return study_content(
        data.measures.study,
        outcomes(data.measures),
        note=disturbance_note(data.measures.runs),
        headline=headline(data),
        facts=[f"{len(schemes)} schemes of {len(groups)} kinds"] if schemes else [],
        key_figures=[figure for model in data.models for figure in key_figures(model)],
        leading=chart_row(
            (model.label, charts.OVERVIEW(model.cells, f"overview-{number}"))
            for number, model in enumerate(data.models, 1)
        ),
        topics=findings(data),
        sections=chart_sections(data),
        tables=[
            *all_tables(data),
            *map(result_table, data.algorithms),
            executions(data.measures.runs),
        ],
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
    epoch = f"{seconds(best.cell.epoch_s)} per epoch"
    facts = [epoch, *([f"{percent(accuracy.mean, 2)} accuracy"] if accuracy else [])]
    meaning = f"{scheme_phrase(best.scheme)} on {best.ranks} ranks"
    if interval is not None:
        return [speed_figure(model.label, interval, meaning=meaning, facts=facts)]
    value = seconds(best.cell.epoch_s)
    return [KeyFigure(label=model.label, value=value, meaning=meaning, beside=", ".join(facts))]


def chart_sections(data: ParallelismStudyData) -> tuple[Section, ...]:
    """Return the sections with all charts that the records allow."""

    def grouped(**drawn: charts.SchemeChart) -> list[Row | None]:
        return [_grouped(data, name.replace("_", "-"), chart) for name, chart in drawn.items()]

    return sections(
        ("scaling", "Time", grouped(speed_up=charts.SPEED_UP, waiting=costs.WAITING)),
        (
            "learning",
            "Loss",
            grouped(loss_step=charts.LOSS_BY_STEP, loss_time=charts.LOSS_BY_TIME),
        ),
        (
            "bytes",
            "Bytes and memory, beside their formulas",
            grouped(sent=costs.SENT, memory=costs.MEMORY),
        ),
        ("staleness", "Staleness", [chart_row(_staleness(data))]),
        ("pipelines", "Pipelines", [chart_row(_pipelines(data))]),
        (
            "scratch",
            "A network from scratch, up to many workers",
            [
                _scratch(data, "scratch-time", charts.EPOCH_BY_WORKERS),
                _scratch(data, "scratch-loss", charts.LOSS_BY_WORKERS),
            ],
        ),
        (
            "algorithms",
            "All-reduce on messages",
            [
                chart_row(
                    (f"{r.title}, {r.ranks} ranks", call_time(r, f"algorithms-{number}"))
                    for number, r in enumerate(data.algorithms, 1)
                )
            ],
        ),
    )


def _grouped(data: ParallelismStudyData, chart: str, draw: charts.SchemeChart) -> Row | None:
    """A panel for each model and group of schemes, with the sequential program."""
    return chart_row(
        (
            f"{model.label}: {group.title}",
            draw(
                [*([model.sequential] if model.sequential else []), *model.of(group)],
                f"{chart}-{number}-{group.name}",
            ),
        )
        for number, model in enumerate(data.models, 1)
        for group in model.groups
    )


def _staleness(data: ParallelismStudyData) -> Iterable[Drawn]:
    for number, model in enumerate(data.models, 1):
        for cell in model.cells:
            if not makes_the_same_update(cell.scheme):
                name = f"staleness-{number}-{_word(cell.scheme)}-{cell.ranks}"
                yield f"{model.label}: {cell.label}", costs.STALENESS(cell, name)


def _pipelines(data: ParallelismStudyData) -> Iterable[Drawn]:
    """Each schedule on its largest number of ranks, with its bubble: bubble 31 %, formula 16 %."""
    for number, model in enumerate(data.models, 1):
        for cell in largest(model.cells):
            drawn = costs.PIPELINE(cell, f"pipeline-{number}-{_word(cell.scheme)}")
            shares = zip(("bubble", "formula"), cell.bubble, strict=True)
            words = ", ".join(f"{what} {percent(s, 0)}" for what, s in shares if s is not None)
            yield f"{model.label}: {cell.label}: {words}", drawn


def _scratch(data: ParallelismStudyData, chart: str, draw: charts.SchemeChart) -> Row | None:
    return chart_row(
        (scheme, draw(with_alone(data.scratch, scheme), f"{chart}-{number}"))
        for number, scheme in enumerate(scratch_schemes(data.scratch), 1)
    )


def _word(scheme: str) -> str:
    """Return a word for the name of an element and a file."""
    return "".join(letter if letter.isalnum() else "-" for letter in scheme)
