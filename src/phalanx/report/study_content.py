"""The parts that the pages of all studies have in common. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.records.schema import Environment, Study
from phalanx.report.comparability import comparability_topic
from phalanx.report.comparison import counted
from phalanx.report.content import Content, KeyFigure, Row, Section, Table, Topic, make_topic, told
from phalanx.report.disturbance import disturbance_topic
from phalanx.report.folder import StudyMeasures
from phalanx.report.format import joined
from phalanx.report.tables import environments
from phalanx.report.trace.write import TRACE_NAME

ERRORS_SHOWN = 5
NOTHING_COMPLETED = "No run of this study was completed yet"


def study_content(
    study: Study,
    outcomes: Sequence[tuple[str, Environment | None]],
    *,
    headline: str,
    facts: Sequence[str],
    key_figures: Sequence[KeyFigure],
    leading: Row | None,
    topics: Sequence[Topic],
    sections: Sequence[Section],
    tables: Sequence[Table],
    num_panels: int = 2,
    note: str = "",
) -> Content:
    """Return the content of a study's page.

    outcomes: status and environment of each run. facts: what the lead says besides how many runs
    were completed and where. note: a sentence behind it.
    """
    known = [environment for _, environment in outcomes if environment]
    completed = sum(status == "completed" for status, _ in outcomes)
    lead = [f"{completed} of {len(outcomes)} runs completed", *facts, machine(known)]
    return Content(
        title=study.study,
        kind=study.kind,
        started_at=study.started_at,
        command=study.command,
        headline=headline,
        lead=f"{', '.join(part for part in lead if part)}. {note}".rstrip(),
        key_figures=key_figures,
        leading=leading,
        topics=topics,
        sections=sections,
        tables=tables,
        environment=environments(known),
        num_panels=num_panels,
    )


def outcomes(measures: StudyMeasures) -> list[tuple[str, Environment | None]]:
    return [(run.status, run.run.environment if run.run else None) for run in measures.runs]


def machine(known: Sequence[Environment]) -> str:
    """Processors and cores, in a few words."""
    kinds = [f"{counted(e.cores, 'core')} of {e.processor}" for e in known]
    return joined(list(dict.fromkeys(kinds)))


def topics_of_runs(measures: StudyMeasures) -> tuple[Topic, ...]:
    """Return the topics on the runs of any study: conditions, what is missing, what failed."""
    return told(
        disturbance_topic(measures.runs),
        comparability_topic(measures.runs),
        unseen_topic(measures),
        trace_topic(measures),
        not_completed_topic(measures),
    )


def trace_topic(measures: StudyMeasures) -> Topic:
    """Point to the trace of what every rank did when."""
    names = [run.name for run in measures.runs if run.is_traced]
    text = (
        f"What every rank did when is in {TRACE_NAME} of {joined(names)}: open it in "
        "https://ui.perfetto.dev or chrome://tracing. It shows every collective, and who waited "
        "in it for whom."
    )
    rule = "Of runs with --trace, and of `phalanx trace`."
    return make_topic("Trace", rule, [("", text)] if names else [])


def unseen_topic(measures: StudyMeasures) -> Topic:
    """Runs of which some ranks left their records elsewhere, or died."""
    died = [
        (
            run.name,
            f"{counted(len(lost), 'rank')} died ({joined(list(map(str, lost)))}), and the others "
            "went on. What needs the records of all is left out.",
        )
        for run in measures.runs
        if run.run is not None and (lost := run.run.outcome.lost)
    ]
    elsewhere = [
        (
            run.name,
            f"There are no records of {counted(len(run.unseen), 'rank')} "
            f"({joined([str(rank) for rank in run.unseen])}): on several nodes that share no "
            "folder each node keeps its own. What needs them is left out.",
        )
        for run in measures.runs
        if run.unseen
    ]
    return make_topic(
        "Without the records of all ranks",
        "Times, losses and accuracies are those that rank 0 summed up over all ranks.",
        [*elsewhere, *died],
    )


def not_completed_topic(measures: StudyMeasures) -> Topic:
    errors = [(run.name, run.error) for run in measures.runs if run.error]
    text = not_completed(measures)
    return make_topic(
        "Not completed",
        "These runs are in no comparison; the table of runs has all their errors.",
        [("", text), *errors[:ERRORS_SHOWN]] if text else [],
    )


def not_completed(measures: StudyMeasures) -> str | None:
    """Return how many runs were not completed, and their status."""
    total = len(measures.runs)
    kinds = [run.status for run in measures.runs if run.status != "completed"]
    if not kinds:
        return None
    counts = [f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)]
    names = joined([run.name for run in measures.runs if run.status != "completed"])
    return f"{len(kinds)} of {counted(total, 'run')}: {joined(counts)} ({names})."
