"""Findings of a large-batch study, as sentences made from its numbers. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from phalanx.report.comparison import counted
from phalanx.report.content import Topic, make_topic, told
from phalanx.report.format import joined, percent, points, points_with_span, seconds
from phalanx.report.large_batch.accuracy_comparison import (
    MARGIN,
    AccuracyComparison,
    baseline_of,
    compare_to_baseline,
    larger_cells,
    largest_holding,
    largest_holding_by_remedy,
    significantly_least,
)
from phalanx.report.large_batch.study_data import BatchCell, LargeBatchStudyData, TimeToTarget
from phalanx.report.statistics import paired_difference
from phalanx.report.study_content import topics_of_runs

UNSTABLE_RISE = 1.1
"""A training loss that rises by more than this factor from an epoch to the next is unstable."""


def headline(data: LargeBatchStudyData) -> str:
    """The one sentence that the page begins with."""
    baseline = data.baseline
    if baseline is None:
        return "The recipe of the smallest batch has not been run to its end yet"
    small, number = f"batch {baseline.batch_size:,}", len(larger_cells(data))
    reached = largest_holding_by_remedy(data)
    if reached:
        best = max(reached, key=lambda cell: cell.batch_size)
        same = [cell.remedy for cell in reached if cell.batch_size == best.batch_size]
        verb, whose = ("hold", "their") if len(same) > 1 else ("holds", "its")
        return (
            f"{joined(_capital(same))} {verb} the accuracy of {whose} optimizer at {small}, to "
            f"{MARGIN * 100:g} points, up to batch {best.batch_size:,}"
        )
    results = [h for r in data.remedies for h in compare_to_baseline(data, r, comparisons=number)]
    if any(result.verdict in ("cannot be told", "holds") for result in results):
        return f"No remedy is seen to hold the accuracy of {small} up to a larger one"
    return f"No remedy holds the accuracy of {small} at a larger one"


def findings(data: LargeBatchStudyData) -> tuple[Topic, ...]:
    """The topics that the records have something to say about."""
    return told(
        make_topic(
            "Which batch holds the accuracy",
            "Each remedy is held to itself at the smallest batch, or to the base recipe there "
            "where the optimizer is the same. A batch holds the accuracy when, seed by seed, the "
            f"interval of the difference lies above \N{MINUS SIGN}{MARGIN * 100:g} points and not "
            "wholly below 0, and no seed diverged. With one seed that cannot be told.",
            _holds(data),
        ),
        make_topic(
            "What a large batch costs",
            "Means over the seeds, each against what it is held to at the smallest batch, "
            "seed by seed. A remedy is called the best where it is seen to be above every other, "
            "and only those are compared of which no seed diverged.",
            _costs(data),
        ),
        make_topic(
            "Where training is unstable",
            "A run is unstable when it diverged, or when its training loss rose by more than "
            f"{percent(UNSTABLE_RISE - 1, 0)} from an epoch to the next.",
            _unstable(data),
        ),
        make_topic(
            "Time to the target",
            "To the next half percentage point below the worst seed of the base recipe. The "
            "soonest is named where it is seen to be sooner than every other, seed by seed.",
            _times(data),
        ),
        *topics_of_runs(data.measures),
    )


def _holds(data: LargeBatchStudyData) -> list[tuple[str, str]]:
    baseline = data.baseline
    if baseline is None or baseline.accuracy is None:
        return []
    sentences = [(baseline.label, f"{baseline.accuracy.text}.")]
    for remedy in data.remedies:
        results = compare_to_baseline(data, remedy)
        texts = [f"batch {r.cell.batch_size:,} {_verdict(r)}" for r in results]
        if not texts:
            continue
        reached = largest_holding(results)
        start = "up to no larger batch" if reached is None else (
            f"up to batch {reached.cell.batch_size:,}")  # fmt: skip
        text = f"{start}, held to {results[0].base.label}: {'; '.join(texts)}."
        sentences.append((remedy, text))
    return sentences


def _verdict(result: AccuracyComparison) -> str:
    """holds it, by +0.01 points (-0.05 to +0.07)."""
    lost = _lost(result.cell)
    if result.verdict == "diverged":
        return lost
    if not result.cell.num_seeds:
        return "cannot be told, as no run of it came to its end"
    if result.difference is None:
        return "cannot be told from so few seeds"
    by = points_with_span(result.difference)
    return {
        "holds": f"holds it, {by}",
        "is below": f"is below it, {by}",
        "cannot be told": f"cannot be told, {by}",
    }[result.verdict]


def _lost(cell: BatchCell) -> str:
    if not cell.diverged:
        return ""
    return f"diverged with {len(cell.diverged)} of {counted(cell.num_seeds, 'seed')}"


def _costs(data: LargeBatchStudyData) -> list[tuple[str, str]]:
    """Return, for each batch, the cost of the base recipe, and the best remedy if significant."""
    sentences = []
    for batch_size in data.batch_sizes[1:]:
        cells = [cell for cell in data.at(batch_size) if cell.accuracy]
        whole = [cell for cell in cells if not cell.diverged]
        parts = []
        plain = data.cell("plain", batch_size)
        if plain and plain.accuracy:
            parts.append(f"as it is the recipe comes to {_cost(data, plain)}")
        best = significantly_least(
            whole, lambda cell: {s: -a for s, a in cell.accuracy_by_seed.items()}
        )
        if best is not None and best is not plain:
            parts.append(f"best is {best.remedy} with {_cost(data, best)}")
        elif len(whole) > 1 and best is None:
            top = max(whole, key=lambda cell: cell.accuracy.mean if cell.accuracy else 0.0)
            leader = "" if top is plain else f"; {top.remedy} has {_cost(data, top)}"
            parts.append(f"which remedy is best cannot be told{leader}")
        gone = [f"{c.remedy} {_lost(c)}" for c in data.at(batch_size) if c.diverged]
        if parts or gone:
            text = "; ".join([*parts, *gone])
            sentences.append((f"batch {batch_size:,}", f"{text}."))
    return sentences


def _cost(data: LargeBatchStudyData, cell: BatchCell) -> str:
    """Accuracy, and what it is against that of the smallest batch."""
    assert cell.accuracy is not None
    text = percent(cell.accuracy.mean, 2)
    base = baseline_of(data, cell)
    if base is None:
        return text
    interval = paired_difference(cell.accuracy_by_seed, base.accuracy_by_seed)
    if interval is None:
        both = cell.accuracy_by_seed.keys() & base.accuracy_by_seed.keys()
        gap = [cell.accuracy_by_seed[seed] - base.accuracy_by_seed[seed] for seed in both]
        return f"{text}, {points(gap[0])} points with one seed" if gap else text
    return f"{text}, {points_with_span(interval)} to {base.label}"


def _unstable(data: LargeBatchStudyData) -> list[tuple[str, str]]:
    sentences = []
    for cell in data.cells:
        risen = [
            (run.name, epoch)
            for run in cell.runs
            if (epoch := _first_rise([e.train_loss for e in run.trained])) is not None
        ]
        parts = []
        if cell.diverged:
            parts.append(
                f"{len(cell.diverged)} of {counted(cell.num_seeds, 'seed')} diverged "
                f"({_where(cell)})"
            )
        if risen:
            first = min(epoch for _, epoch in risen)
            parts.append(
                f"the training loss of {len(risen)} of {counted(cell.num_seeds, 'seed')} rose, "
                f"first in epoch {first + 1}"
            )
        if parts:
            sentences.append((cell.label, f"{'; '.join(parts)}."))
    return sentences


def _where(cell: BatchCell) -> str:
    """The steps at which its runs stopped, from their errors."""
    found = [re.search(r"\bstep (\d+):", run.error or "") for run in cell.diverged]
    steps = sorted(int(match[1]) for match in found if match)
    if not steps:
        return "gradients were not finite"
    return f"at step {steps[0]}" + (f" to {steps[-1]}" if steps[-1] > steps[0] else "")


def _first_rise(losses: Sequence[float | None]) -> int | None:
    for epoch, (before, after) in enumerate(itertools.pairwise(losses), 1):
        if before is not None and after is not None and after > UNSTABLE_RISE * before:
            return epoch
    return None


def _times(data: LargeBatchStudyData) -> list[tuple[str, str]]:
    if data.target is None:
        return []
    reached = [r for cell in data.cells if (r := data.time_to_target(cell)).num_reached]
    whole = [r for r in reached if r.num_reached == r.cell.num_seeds]
    sentences = [
        (
            f"to {percent(data.target, 1)}",
            f"{len(whole)} of {len(data.cells)} combinations of remedy and batch reached "
            "it with every seed.",
        )
    ]
    by_label = {r.cell.label: r for r in whole}
    cells = [r.cell for r in whole]
    for what, values_of in (
        ("soonest", lambda cell: by_label[cell.label].trained_s_by_seed),
        ("in the fewest updates", lambda cell: by_label[cell.label].updates_by_seed),
    ):
        best = significantly_least(cells, values_of)
        if best is not None:
            text = f"{best.label}: {_how_long(by_label[best.label])}."
            sentences.append((what, text))
    baseline = data.baseline
    if baseline and whole:
        own = data.time_to_target(baseline)
        if own.num_reached:
            sentences.append((baseline.label, f"{_how_long(own)}."))
    return sentences


def _how_long(reached: TimeToTarget) -> str:
    assert reached.trained_s is not None and reached.epochs is not None
    return (
        f"{seconds(reached.trained_s)} of training, {reached.epochs:.1f} epochs, "
        f"{reached.updates:,.0f} updates"
    )


def _capital(words: Sequence[str]) -> list[str]:
    return [words[0][:1].upper() + words[0][1:], *words[1:]]
