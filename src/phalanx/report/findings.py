"""Sentences computed from the measures: what a reader should take away. Pure.

A sentence states its rule where it draws a line, and nothing that the records do not show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from phalanx.report.comparability import comparability_topic
from phalanx.report.comparison import (
    Cell,
    TrainingWorkload,
    counted,
    main_batch,
    sequential_reference,
    speed_up,
    workload_labels,
)
from phalanx.report.disturbance import disturbance_topic, with_disturbance
from phalanx.report.finding_sentences import (
    WALL_SHARE,
    accuracy_against_sequential,
    best_configuration,
    beyond_ideal,
    communication_wall,
    hidden_communication,
    mpi_or_gloo,
    oversubscription,
    sentence,
)
from phalanx.report.folder import StudyMeasures
from phalanx.report.format import joined, percent, ratio, seconds
from phalanx.report.topic import Sentence, Topic
from phalanx.report.trace.write import TRACE_NAME

ERRORS_SHOWN = 5


def findings(measures: StudyMeasures) -> tuple[Topic, ...]:
    """The topics that the records have something to say about."""
    by_workload = scaling_cells(measures.cells)
    labels = workload_labels(by_workload)
    topics = []
    for title, rule, make_sentence in _QUESTIONS:
        found = [(labels[s].upper(), make_sentence(cells)) for s, cells in by_workload.items()]
        sentences = tuple(Sentence(label=label, text=text) for label, text in found if text)
        topics.append(Topic(title=title, rule=rule, sentences=sentences))
    topics.append(disturbance_topic(measures.runs))
    topics.append(comparability_topic(measures.runs))
    topics.append(unseen_topic(measures))
    topics.append(trace_topic(measures))
    topics.append(not_completed_topic(measures))
    return tuple(topic for topic in topics if topic.sentences)


def trace_topic(measures: StudyMeasures) -> Topic:
    """Point to the trace of what every rank did when."""
    names = [run.name for run in measures.runs if run.is_traced]
    text = (
        f"What every rank did when is in {TRACE_NAME} of {joined(names)}: open it in "
        "https://ui.perfetto.dev or chrome://tracing. It shows every collective, and who waited "
        "in it for whom."
    )
    return Topic(
        title="Trace",
        rule="Of runs with --trace, and of `phalanx trace`.",
        sentences=(Sentence(label="", text=text),) if names else (),
    )


def unseen_topic(measures: StudyMeasures) -> Topic:
    """Runs of which some ranks left their records elsewhere."""
    sentences = [
        Sentence(
            label=run.name,
            text=f"There are no records of {counted(len(run.unseen), 'rank')} "
            f"({joined([str(rank) for rank in run.unseen])}): on several nodes that share no "
            "folder each node keeps its own. What needs them is left out.",
        )
        for run in measures.runs
        if run.unseen
    ]
    return Topic(
        title="Without the records of all ranks",
        rule="Times, losses and accuracies are those that rank 0 summed up over all ranks.",
        sentences=tuple(sentences),
    )


def not_completed_topic(measures: StudyMeasures) -> Topic:
    text = not_completed(measures)
    errors = [(run.name, run.error) for run in measures.runs if run.error]
    shown = [Sentence(label=name, text=error) for name, error in errors[:ERRORS_SHOWN] if error]
    return Topic(
        title="Not completed",
        rule="These runs are in no comparison; the table of runs has all their errors.",
        sentences=(Sentence(label="", text=text), *shown) if text else (),
    )


def headline(measures: StudyMeasures) -> str:
    """The one sentence that the page begins with."""
    by_workload = scaling_cells(measures.cells)
    if not by_workload:
        return "No run of this study was completed yet"
    labels = workload_labels(by_workload)
    return with_disturbance(_fastest(by_workload, labels), measures.runs)


def _fastest(
    by_workload: Mapping[TrainingWorkload, list[Cell]], labels: Mapping[TrainingWorkload, str]
) -> str:
    """The largest speed-up whose interval carries it, over all configurations of all workloads."""
    cells = [cell for group in by_workload.values() for cell in group]
    known = [cell for cell in cells if cell.speed_up is not None]
    if not known:
        cell = min(cells, key=lambda cell: cell.epoch_s)
        label = labels[cell.workload].upper()
        return f"An epoch of the {label} takes {seconds(cell.epoch_s)}, {cell.layout.phrase}"
    faster = []
    for cell in known:
        reference = sequential_reference(cell, cells)
        if reference is not None and reference is not cell:
            interval = speed_up(reference, cell, comparisons=len(known))
            if interval is not None and interval.verdict(1) == "higher":
                faster.append((interval, cell))
    if not faster:
        return "Nothing tried here is seen to beat the sequential program with one thread"
    interval, cell = max(faster, key=lambda pair: pair[0].estimate)
    gain = f"{ratio(interval)} as fast as one sequential thread"
    label = labels[cell.workload].upper()
    return sentence(f"{cell.layout.phrase} trains the {label} {gain}").rstrip(".")


def scaling_cells(cells: Sequence[Cell]) -> dict[TrainingWorkload, list[Cell]]:
    """The cells of each workload at the batch size that most of them share."""
    by_workload: dict[TrainingWorkload, list[Cell]] = {}
    for cell in cells:
        by_workload.setdefault(cell.workload, []).append(cell)
    return {
        workload: [cell for cell in group if cell.layout.batch_size == main_batch(group)]
        for workload, group in by_workload.items()
    }


def not_completed(measures: StudyMeasures) -> str | None:
    """Return how many runs were not completed, and their status."""
    total = len(measures.runs)
    kinds = [run.status for run in measures.runs if run.status != "completed"]
    if not kinds:
        return None
    counts = [f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)]
    names = joined([run.name for run in measures.runs if run.status != "completed"])
    return f"{len(kinds)} of {counted(total, 'run')}: {joined(counts)} ({names})."


_QUESTIONS: tuple[tuple[str, str, Callable[[Sequence[Cell]], str | None]], ...] = (
    (
        "Best configuration",
        "The shortest median epoch, where the interval of its ratio to every other says so; the "
        "first epoch is left out as warm-up where there are three. Intervals are of 95 %, by the "
        "bootstrap over runs, all comparisons of a sentence together.",
        best_configuration,
    ),
    (
        "Communication",
        "The wall is the first number of ranks that is seen to lengthen the epoch, or whose "
        f"communication takes more than {percent(WALL_SHARE, 0)} of the training time.",
        communication_wall,
    ),
    (
        "Hidden communication",
        "Of a mean step, over ranks. What is sent last has nothing left to hide behind: all but "
        "the last bucket can be hidden, as far as the backward pass is long enough.",
        hidden_communication,
    ),
    (
        "Oversubscription",
        "Runs with more compute threads than cores, against the fastest run that fits.",
        oversubscription,
    ),
    (
        "Efficiency beyond 100 %",
        "Speed-up \N{DIVISION SIGN} (ranks \N{MULTIPLICATION SIGN} threads of each), with its "
        "interval.",
        beyond_ideal,
    ),
    (
        "Accuracy",
        "On the validation data after the last epoch, against the sequential program with the "
        "same seed.",
        accuracy_against_sequential,
    ),
    (
        "MPI against Gloo",
        "Same model, batch, ranks and threads. What an interval that holds 1 does not tell apart "
        "is not called faster.",
        mpi_or_gloo,
    ),
)
