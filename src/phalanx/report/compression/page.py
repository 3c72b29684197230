"""The page of a compression study: what it is made of."""

from __future__ import annotations

from phalanx.report.compression.charts import ACCURACY, SENT, STEP_BY_BANDWIDTH, step_on
from phalanx.report.compression.findings import best_compressor, findings, headline, nearest_gigabit
from phalanx.report.compression.study_data import (
    MEMORY,
    NONE,
    CompressionStudyData,
    compressor_phrase,
    read_study_data,
)
from phalanx.report.compression.tables import compressors, fit_table
from phalanx.report.content import Content, KeyFigure, chart_row, sections, speed_figure, with_rows
from phalanx.report.disturbance import disturbance_note
from phalanx.report.folder import StudyMeasures
from phalanx.report.format import amount, percent
from phalanx.report.study_content import outcomes, study_content
from phalanx.report.tables import executions


def compression_content(measures: StudyMeasures) -> Content:
    """Raises: UserError when the records cannot be read."""
    return content_of(read_study_data(measures.folder, measures))


def content_of(data: CompressionStudyData) -> Content:
    """Return the content of a compression study's page."""
    runs = data.measures.runs
    settings = [run.setting for run in runs if run.setting]
    facts = sorted({f"{s.model} on {s.dataset}, {s.ranks} ranks" for s in settings})
    whole = data.sent_bytes(NONE)
    facts += [f"{amount(whole)} per step without compression"] if whole else []
    place = nearest_gigabit(data) or MEMORY
    return study_content(
        data.measures.study,
        outcomes(data.measures),
        note=disturbance_note(data.measures.runs),
        headline=headline(data),
        facts=facts,
        key_figures=key_figures(data),
        leading=chart_row(
            [
                ("bytes", SENT(data, "sent")),
                (f"time, {place}", step_on(data, place, "time")),
                ("accuracy", ACCURACY(data, "accuracy")),
            ],
            title="Bytes, time and accuracy",
        ),
        topics=findings(data),
        sections=sections(
            (
                "bandwidth",
                "Where it begins to pay",
                [chart_row([("imitated links", STEP_BY_BANDWIDTH(data, "by-bandwidth"))])],
            ),
            (
                "places",
                "A step in each place",
                [
                    chart_row(
                        (place, step_on(data, place, f"step-{number}"))
                        for number, place in enumerate(data.places, 1)
                    )
                ],
            ),
        ),
        tables=with_rows(compressors(data), fit_table(data), executions(runs)),
    )


def key_figures(data: CompressionStudyData) -> list[KeyFigure]:
    """Return the compressor that is faster and holds the accuracy, for each place."""
    figures = []
    for place in data.places:
        if chosen := best_compressor(data, place):
            best, interval = chosen
            spread = data.accuracy(best.compressor)
            facts = [f"{1e3 * best.step_s:.3g} ms per step"]
            facts += [f"{percent(spread.mean, 2)} accuracy"] if spread else []
            phrase = compressor_phrase(best.compressor)
            figures.append(speed_figure(place, interval, meaning=phrase, facts=facts))
    return figures
