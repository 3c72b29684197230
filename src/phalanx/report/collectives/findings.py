"""Sentences about measured collectives: what a reader should take away. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from phalanx.records.collectives import Collective
from phalanx.report.collectives.comparison import (
    FAR,
    PHRASES,
    CollectiveResults,
    PathComparison,
    path_comparisons,
)
from phalanx.report.collectives.finding_sentences import (
    at_size,
    best_against_rest,
    comparison_text,
    crossings,
    distance_from_floor,
    headline_comparison,
    of_size,
    private_tensors,
)
from phalanx.report.collectives.measures import BenchMeasure, Obstacle
from phalanx.report.finding_sentences import sentence
from phalanx.report.format import duration, joined, size
from phalanx.report.topic import Sentence, Topic

QUIET_PER_S = 300  # a quiet machine of two cores showed 210 to 240, a busy one 350 to 1,200


def findings(
    all_results: Sequence[CollectiveResults], measures: Sequence[BenchMeasure]
) -> tuple[Topic, ...]:
    """The topics that the records have something to say about."""
    topics = [_all_libraries(all_results)]
    for title, rule, make_sentence in _QUESTIONS:
        found = [(results.title, make_sentence(results)) for results in all_results]
        sentences = tuple(Sentence(label=label, text=text) for label, text in found if text)
        topics.append(Topic(title=title, rule=rule, sentences=sentences))
    topics += [_correctness(all_results), _disturbance(measures)]
    topics += [_missing(measures), _not_completed(measures)]
    return tuple(topic for topic in topics if topic.sentences)


def headline(all_results: Sequence[CollectiveResults]) -> str:
    """The one sentence that the page begins with: ours against the best of all others."""
    found = [
        (results, comparison)
        for results in all_results
        for comparison in [headline_comparison(results)]
        if comparison
    ]
    if not found:
        return "Nothing to compare was measured yet" if not all_results else _alone(all_results[0])
    # The headline shows the fastest rival of all MPI libraries.
    first = all_results[0].collective
    rivals = [pair for pair in found if pair[0].collective == first] or found[:1]
    results, comparison = min(rivals, key=lambda pair: pair[1].gain)
    what, verdict = (
        PHRASES[results.collective],
        comparison_text(comparison, comparisons=len(rivals)),
    )
    if comparison.num_bytes:
        what = f"{what} of {size(comparison.num_bytes)}"
    return sentence(f"{what} {results.where}: {comparison.ours.label} is {verdict}").rstrip(".")


def _correctness(all_results: Sequence[CollectiveResults]) -> Topic:
    """Report wrong results, or that there were none."""
    points = [(results, point) for results in all_results for point in results.points]
    calls = sum(len(point.times_s) for _, point in points)
    sentences = [
        Sentence(
            label=results.title,
            text=sentence(f"{p.label}{of_size(p.num_bytes)}: {p.wrong:,} wrong elements"),
        )
        for results, p in points
        if p.wrong
    ]
    if not sentences and calls:
        text = f"All results of {calls:,} timed calls were right, every element on every rank."
        sentences = [Sentence(label="", text=text)]
    return Topic(
        title="Correctness",
        rule="Buffers are rewritten before every call, results checked after it.",
        sentences=tuple(sentences),
    )


def _disturbance(measures: Sequence[BenchMeasure]) -> Topic:
    """Report other load on the machine during the measurement."""
    sentences = []
    for measure in measures:
        lost, bench = measure.preempted_per_s, measure.bench
        crowded = bench is not None and (
            bench.setting.crowd > 0 or bench.setting.ranks > bench.environment.cores
        )
        if lost is not None and lost > QUIET_PER_S and not crowded:
            text = (
                f"Ranks lost their core {lost:,.0f} times a second: something else was at work, "
                "and these are not the numbers of a quiet machine."
            )
            sentences.append(Sentence(label=measure.mpi, text=text))
    return Topic(
        title="Disturbance",
        rule=f"Said from {QUIET_PER_S} times a second up, where every rank has a core of its own.",
        sentences=tuple(sentences),
    )


def _missing(measures: Sequence[BenchMeasure]) -> Topic:
    """List what could not be measured; once where it holds for every run."""
    met: dict[Obstacle, list[str]] = {}
    for measure in measures:
        for obstacle in measure.obstacles:
            met.setdefault(obstacle, []).append(measure.mpi)
    sentences = []
    for obstacle, runs in met.items():
        where = f" ({joined(runs)})" if len(runs) < len(measures) else ""
        reason = obstacle.reason.rstrip(".")
        text = sentence(f"{PHRASES[obstacle.collective]}: {reason}{where}")
        sentences.append(Sentence(label=obstacle.label, text=text))
    return Topic(
        title="Not measured",
        rule="Paths that were asked for and cannot be used here, with the reason.",
        sentences=tuple(sentences),
    )


def _all_libraries(all_results: Sequence[CollectiveResults]) -> Topic:
    """Return the smallest lead over any MPI library at each size, where several were measured."""
    groups: dict[tuple[Collective, int], list[CollectiveResults]] = {}
    for results in all_results:
        groups.setdefault((results.collective, results.ranks), []).append(results)
    sentences = []
    for (collective, ranks), group in groups.items():
        if len({results.measure.mpi for results in group}) > 1:
            found = [comparison for results in group for comparison in path_comparisons(results)]
            sizes = sorted({comparison.num_bytes for comparison in found})
            hardest = [min((d for d in found if d.num_bytes == n), key=_gain) for n in sizes]
            label = f"{sentence(PHRASES[collective]).rstrip('.')}, {ranks} ranks"
            parts = [
                f"{at_size(pair.num_bytes)}{comparison_text(pair, comparisons=len(hardest))}"
                for pair in hardest
            ]
            sentences.append(Sentence(label=label, text=sentence("; ".join(parts))))
    return Topic(
        title="All libraries together",
        rule="At each size the smallest lead of Phalanx, each within the run of that library.",
        sentences=tuple(sentences),
    )


def _gain(comparison: PathComparison) -> float:
    return comparison.gain


def _not_completed(measures: Sequence[BenchMeasure]) -> Topic:
    sentences = [
        Sentence(label=measure.name, text=sentence(f"{measure.status}: {measure.error or '–'}"))
        for measure in measures
        if measure.status != "completed"
    ]
    return Topic(
        title="Not completed",
        rule="What these measured before they ended is shown all the same.",
        sentences=tuple(sentences),
    )


def _alone(results: CollectiveResults) -> str:
    fastest = results.at(results.sizes[-1])[0]
    what = f"{PHRASES[results.collective]}{of_size(fastest.num_bytes)} {results.where}"
    return sentence(f"{what}: {duration(fastest.median_s)} with {fastest.label}").rstrip(".")


_QUESTIONS: tuple[tuple[str, str, Callable[[CollectiveResults], str | None]], ...] = (
    (
        "Phalanx against the rest",
        "The fastest path of Phalanx and the fastest of the others at each size, by their medians "
        "in the same run.",
        best_against_rest,
    ),
    (
        "Who wins where",
        "The path with the smallest median at each size that was measured, where the interval of "
        f"its ratio to every other says so; what takes more than {FAR:g} times as long is slower "
        "without one.",
        crossings,
    ),
    (
        "Unmodified PyTorch scripts",
        "torch.distributed on tensors where PyTorch put them, backend mpi against Gloo.",
        private_tensors,
    ),
    (
        "Distance from the floor",
        "The floor: the bytes that must move ÷ the bandwidth of copying at that working set, and "
        "a flag's way there and back, all measured in the same run.",
        distance_from_floor,
    ),
)
