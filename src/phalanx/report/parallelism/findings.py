"""The sentences of a parallelism study by question, each with its rule. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import groupby

from phalanx.report.collectives.comparison import CollectiveResults, is_faster, speed_ratio
from phalanx.report.collectives.finding_sentences import crossings, ratio_words
from phalanx.report.collectives.measures import CollectivePoint
from phalanx.report.comparability import comparability_topic
from phalanx.report.comparison import speed_up
from phalanx.report.disturbance import disturbance_topic, with_disturbance
from phalanx.report.finding_sentences import sentence, undecided
from phalanx.report.findings import not_completed_topic
from phalanx.report.format import UNKNOWN, duration, joined, percent, ratio, seconds, size
from phalanx.report.parallelism import finding_sentences
from phalanx.report.parallelism.chart_rows import hidden_of, workers_of
from phalanx.report.parallelism.rank_details import EQUAL_WITHIN
from phalanx.report.parallelism.scratch import fewest_workers, schemes_of, with_alone
from phalanx.report.parallelism.study_data import ModelData, ParallelCell, ParallelismStudyData
from phalanx.report.schemes import scheme_phrase
from phalanx.report.topic import Sentence, Topic

SentenceFunction = Callable[[ModelData], str | None]


def findings(data: ParallelismStudyData) -> tuple[Topic, ...]:
    """The topics that the records have something to say about."""
    topics = [
        Topic(
            title=title,
            rule=rule,
            sentences=tuple(
                Sentence(label=model.label, text=text)
                for model in data.models
                for make_sentence in functions
                if (text := make_sentence(model))
            ),
        )
        for title, rule, functions in _QUESTIONS
    ]
    topics += [
        _scratch(data.scratch),
        _algorithms(data),
        _left_out(data),
        disturbance_topic(data.measures.runs),
        comparability_topic(data.measures.runs),
        not_completed_topic(data.measures),
    ]
    return tuple(topic for topic in topics if topic.sentences)


def headline(data: ParallelismStudyData) -> str:
    """The one sentence that the page begins with."""
    found = [
        (model, cell)
        for model in data.models
        for cell in model.cells
        if cell.scheme != "sequential" and cell.cell.speed_up is not None
    ]
    if not found:
        runs = sum(run.status == "completed" for run in data.measures.runs)
        if not runs:
            return "No run of this study was completed yet"
        return f"{runs} ways of splitting a training, side by side"
    return with_disturbance(_fastest(found), data.measures.runs)


def _fastest(found: list[tuple[ModelData, ParallelCell]]) -> str:
    faster = [
        (interval, model, cell)
        for model, cell in found
        if model.sequential is not None
        if (interval := finding_sentences.faster_than(model.sequential, cell, len(found)))
    ]
    if not faster:
        return "No way of splitting the training is seen to beat one process with one thread here"
    interval, model, best = max(faster, key=lambda item: item[0].estimate)
    gain = f"{ratio(interval)} as fast as one process with one thread"
    text = f"{scheme_phrase(best.scheme)} on {best.ranks} ranks trains the {model.label} {gain}"
    return sentence(text).rstrip(".")


def _scratch(cells: tuple[ParallelCell, ...]) -> Topic:
    """Return the number of workers with the shortest epoch, and the time of the most workers."""
    sentences = []
    for scheme in schemes_of(cells):
        own = sorted(with_alone(cells, scheme), key=_widths)
        parts = []
        for hidden, group in groupby(own, key=hidden_of):
            of_width = list(group)
            first = fewest_workers(of_width, hidden)
            if first is None or len(of_width) < 2:
                continue
            best = min(of_width, key=lambda cell: cell.cell.epoch_s)
            rivals = undecided(best.cell, [cell.cell for cell in of_width])
            most = max(of_width, key=workers_of)
            text = f"with {hidden} hidden units " + (
                f"the shortest epoch cannot be told: {_workers(best)} take"
                if rivals
                else f"an epoch is shortest on {_workers(best)}:"
            )
            text += f" {seconds(best.cell.epoch_s)}"
            longer = speed_up(most.cell, first.cell)
            if most is not first and longer is not None:
                text += f"; {_workers(most)} take {ratio(longer)} the time of {_workers(first)}"
            parts.append(text)
        if parts:
            sentences.append(Sentence(label=scheme, text=sentence("; ".join(parts))))
    return Topic(
        title="From scratch, up to many workers",
        rule="The network without PyTorch; more workers than cores share the cores, so this shows "
        "what the scheme itself costs.",
        sentences=tuple(sentences),
    )


def _algorithms(data: ParallelismStudyData) -> Topic:
    sentences = []
    for results in data.algorithms:
        for text in (crossings(results), against_naive(results)):
            if text:
                sentences.append(Sentence(label=f"{results.ranks} ranks", text=text))
    sentences += [
        Sentence(label=bench.name, text=f"{bench.status}: {bench.error or UNKNOWN}")
        for bench in data.benches
        if bench.status != "completed"
    ]
    return Topic(
        title="All-reduce on messages",
        rule="The algorithm with the smallest median at each size, and from which size on each "
        "beats the naive one: everything to rank 0 and back; where an interval says so.",
        sentences=tuple(sentences),
    )


def against_naive(results: CollectiveResults) -> str | None:
    """Return the size from which each algorithm is significantly faster than the naive one."""
    naive = {p.num_bytes: p for p in results.points if p.path == "naive"}
    parts = []
    for path in dict.fromkeys(p.path for p in results.points if p.path != "naive"):
        own = {p.num_bytes: p for p in results.points if p.path == path and p.num_bytes in naive}
        sizes = sorted(own)
        if not sizes:
            continue
        number, label, last = len(sizes), own[sizes[0]].label, sizes[-1]
        wins = _sizes_won(own, naive)
        gain = speed_ratio(own[last], naive[last], comparisons=number)
        if not wins or gain is None:
            parts.append(f"{label} is not seen to beat it for good up to {size(last)}")
            continue
        where = "at every size" if len(wins) == number else f"from {size(wins[-1])} on"
        parts.append(
            f"{label} beats it {where} ({ratio_words(gain)} as fast at {size(last)}: "
            f"{duration(own[last].median_s)})"
        )
    return sentence(f"against the naive algorithm: {joined(parts)}") if parts else None


def _sizes_won(
    own: Mapping[int, CollectivePoint], naive: Mapping[int, CollectivePoint]
) -> list[int]:
    """Return the largest sizes without a gap at which `own` is significantly faster."""
    won = []
    for num_bytes in sorted(own, reverse=True):
        if not is_faster(own[num_bytes], naive[num_bytes], comparisons=len(own)):
            break
        won.append(num_bytes)
    return won


def _left_out(data: ParallelismStudyData) -> Topic:
    """List the configurations that cannot be run, each reason once."""
    reasons: dict[str, list[str]] = {}
    for name, reason in data.measures.study.left_out.items():
        reasons.setdefault(reason, []).append(name)
    return Topic(
        title="Left out",
        rule="Asked for, and impossible on this number of ranks or with this model.",
        sentences=tuple(
            Sentence(label=joined(names), text=f"{reason.rstrip('.')}.")
            for reason, names in reasons.items()
        ),
    )


def _widths(cell: ParallelCell) -> list[int]:
    return [int(width) for width in hidden_of(cell).split()]


def _workers(cell: ParallelCell) -> str:
    number = workers_of(cell)
    if cell.scheme == "alone":
        return "one process"
    return f"{number} worker" if number == 1 else f"{number} workers"


_QUESTIONS: tuple[tuple[str, str, tuple[SentenceFunction, ...]], ...] = (
    (
        "Which scheme wins",
        "The shortest median epoch among schemes on the same number of ranks, where the interval "
        "of its ratio to every other says so; the first epoch is left out as warm-up where there "
        "are three. T(1) is the sequential program with one thread.",
        (finding_sentences.fastest, finding_sentences.faster_than_sequential),
    ),
    (
        "Memory",
        "Parameters, gradients and optimizer state that a rank keeps between two steps; "
        "\N{GREEK CAPITAL LETTER PSI} is the number of parameters, p the ranks.",
        (finding_sentences.least_memory, finding_sentences.memory_and_theory),
    ),
    (
        "Bytes",
        "Counted on every rank as it sends them, per step; equal means within "
        f"{percent(EQUAL_WITHIN, 1)} of the formula.",
        (finding_sentences.bytes_and_theory, finding_sentences.most_and_least_bytes),
    ),
    (
        "Waiting",
        "Communication that a step waited for, not what was hidden behind computing, nor "
        "what sharded and split models exchange within their forward and backward passes.",
        (finding_sentences.waits,),
    ),
    (
        "The same mathematics",
        "Splitting changes the time and not the update; asynchronous servers and local steps do "
        "change it. Runs are compared seed by seed: those of one seed start from the same weights.",
        (finding_sentences.losses_agree, finding_sentences.drift),
    ),
    (
        "Staleness",
        "Updates of other workers between reading the parameters and writing the update.",
        (finding_sentences.staleness,),
    ),
    (
        "Pipelines",
        "The share of a step in which a rank does nothing, in the shortest of the recorded steps: "
        "rather too little than too much. By theory (p\N{MINUS SIGN}1)/(m+p"
        "\N{MINUS SIGN}1) for GPipe and 1F1B with m micro-batches on p ranks; with v stages a rank "
        "v\N{MIDDLE DOT}m in place of m where they are interleaved, 3v\N{MIDDLE DOT}m for "
        "zero-bubble.",
        (finding_sentences.bubbles,),
    ),
)
