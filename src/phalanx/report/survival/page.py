"""The page of a survival study: what it is made of."""

from __future__ import annotations

from phalanx.report.comparison import counted
from phalanx.report.content import Content, KeyFigure, chart_row, sections, with_rows
from phalanx.report.folder import StudyMeasures
from phalanx.report.format import duration, one_decimal
from phalanx.report.statistics import mean_interval
from phalanx.report.study_content import outcomes, study_content
from phalanx.report.survival.charts import (
    EFFECTIVE_TIME,
    LOSS_BY_TIME,
    LOSS_BY_UPDATES,
    STEP_TIMES,
)
from phalanx.report.survival.findings import findings, headline, mean_time_between, same_bits
from phalanx.report.survival.study_data import SurvivalCell, SurvivalStudyData, read_study_data
from phalanx.report.survival.tables import bits, faults, ways
from phalanx.report.tables import executions

SEEDS_DRAWN = 3


def survival_content(measures: StudyMeasures) -> Content:
    """Raises: UserError when the records cannot be read."""
    return content_of(read_study_data(measures.folder, measures))


def content_of(data: SurvivalStudyData) -> Content:
    """Return the content of a survival study's page."""
    seeds = [seed for seed in data.seeds if data.of_seed(seed)][:SEEDS_DRAWN]
    first = data.of_seed(seeds[0]) if seeds else []
    number = sum(len(run.timeline.faults) for run in data.runs)
    left_out = [f"left out: {way}: {why}" for way, why in data.measures.study.left_out.items()]
    return study_content(
        data.measures.study,
        outcomes(data.measures),
        headline=headline(data),
        facts=[counted(number, "fault"), *left_out],
        key_figures=key_figures(data),
        leading=chart_row(
            [
                (f"seed {seeds[0]}", LOSS_BY_TIME(first, "loss-by-time")),
                (f"seed {seeds[0]}", LOSS_BY_UPDATES(first, "loss-by-updates")),
            ]
            if seeds
            else [],
            title="Loss against wall-clock time, with every fault, and against updates",
        ),
        topics=findings(data),
        sections=sections(
            (
                "time",
                "Where the time goes",
                [
                    chart_row([("all runs", EFFECTIVE_TIME(data, "effective-time"))]),
                    chart_row(
                        (f"seed {seed}", STEP_TIMES(data.of_seed(seed), f"steps-{seed}"))
                        for seed in seeds
                    ),
                ],
            ),
            (
                "seeds",
                "Loss against time, of further seeds",
                [
                    chart_row(
                        (f"seed {seed}", LOSS_BY_TIME(data.of_seed(seed), f"loss-by-time-{seed}"))
                        for seed in seeds[1:]
                    )
                ],
            ),
        ),
        tables=with_rows(ways(data), faults(data), bits(data), executions(data.measures.runs)),
    )


def key_figures(data: SurvivalStudyData) -> list[KeyFigure]:
    """The effective time of each way with faults, times to notice and to continue of the first, and
    the bits."""
    figures = []
    for number, cell in enumerate(data.disturbed_cells):
        figures += _share_of(cell) if number else [*_share_of(cell), *_times_of(cell)]
    if (same := same_bits(data)) is not None:
        figures.append(
            KeyFigure(
                label="same bits",
                value=f"{same.num} of {same.n}",
                meaning="runs with faults that ended with the SHA-256 of the undisturbed run",
                beside="",
            )
        )
    return figures


def _share_of(cell: SurvivalCell) -> list[KeyFigure]:
    interval = cell.share_interval
    if cell.share is None:
        return []
    span = f"{one_decimal(interval.low)} to {one_decimal(interval.high)}; " if interval else ""
    return [
        KeyFigure(
            label=cell.label,
            value=one_decimal(cell.share),
            meaning="of the wall-clock time went into steps that count",
            beside=f"{span}{counted(len(cell.faults), 'fault')}, {mean_time_between(cell)}",
        )
    ]


def _times_of(cell: SurvivalCell) -> list[KeyFigure]:
    figures = []
    for name, meaning in (
        ("notice_s", "until the last survivor had noticed a fault"),
        ("continue_s", "from a fault to the end of the first step after the recovery"),
    ):
        times = cell.times(name)
        known = mean_interval(times)
        if times:
            mean = sum(times) / len(times)
            low = "" if known is None else f"{duration(max(0.0, known.low))} to "
            beside = "one fault" if known is None else f"{low}{duration(known.high)}"
            figures.append(
                KeyFigure(label=cell.label, value=duration(mean), meaning=meaning, beside=beside)
            )
    return figures
