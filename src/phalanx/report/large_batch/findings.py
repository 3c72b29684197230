"""Findings of a large-batch study. Pure."""

from __future__ import annotations

from dataclasses import replace

from phalanx.report.content import Topic, make_topic, told
from phalanx.report.findings import Finding, headline_text
from phalanx.report.format import joined, percent, seconds, sentence
from phalanx.report.large_batch.accuracy_comparison import (
    MARGIN,
    baseline_of,
    compare_to_baseline,
    held_to,
    larger_cells,
    largest_holding,
    largest_holding_by_remedy,
    significantly_least,
)
from phalanx.report.large_batch.study_data import LargeBatchStudyData
from phalanx.report.study_content import topics_of_runs


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
        return headline_text(
            f"{joined(same)} {verb} the accuracy of {whose} optimizer at {small}, to "
            f"{MARGIN * 100:g} points, up to batch {best.batch_size:,}"
        )
    results = [h for r in data.remedies for h in compare_to_baseline(data, r, comparisons=number)]
    if any(result.verdict in ("unclear", "holds") for result in results):
        return f"No remedy is seen to hold the accuracy of {small} up to a larger one"
    return f"No remedy holds the accuracy of {small} at a larger one"


def findings(data: LargeBatchStudyData) -> tuple[Topic, ...]:
    """The topics that the records have something to say about."""
    return told(
        make_topic(
            "Which batch holds the accuracy",
            "Each remedy is held to itself at the smallest batch, or to the base recipe there "
            "where the optimizer is the same; the first batch that does not hold it is named. A "
            "batch holds the accuracy when, seed by seed, the interval of the difference lies "
            f"above \N{MINUS SIGN}{MARGIN * 100:g} points and not wholly below 0, and no seed "
            "diverged. One seed is too few to say.",
            [(remedy, holds(data, remedy)) for remedy in data.remedies] if data.baseline else [],
        ),
        make_topic(
            "Which remedy is best",
            "Where it is seen to be above every other, seed by seed; only those are compared of "
            "which no seed diverged. Beside it, the same remedy or the base recipe at the smallest "
            "batch.",
            [(f"batch {n:,}", best_remedy(data, n)) for n in data.batch_sizes[1:]],
        ),
        make_topic(
            "Time to the target",
            "To the next half percentage point below the worst seed of the base recipe. The "
            "soonest is named where it is seen to be sooner than every other, seed by seed.",
            [("", soonest(data))],
        ),
        *topics_of_runs(data.measures),
    )


def holds(data: LargeBatchStudyData, remedy: str) -> list[Finding]:
    """Return the largest batch up to which all hold the accuracy, and the first that does not."""
    results = compare_to_baseline(data, remedy)
    if not results:
        return []
    reached = largest_holding(results)
    first = next((result.finding for result in results if result.verdict != "holds"), None)
    start = f"up to batch {reached.cell.batch_size:,}" if reached else "up to no larger batch"
    text = f"{start}, held to {results[0].base.label}"
    return [text, first] if first else [sentence(text)]


def best_remedy(data: LargeBatchStudyData, batch_size: int) -> Finding | None:
    """Return the remedy with the highest accuracy, where that is significant."""
    whole = [cell for cell in data.at(batch_size) if cell.accuracy and not cell.diverged]
    best = significantly_least(
        whole, lambda cell: {s: -a for s, a in cell.accuracy_by_seed.items()}
    )
    if best is None or best.accuracy is None:
        return "no remedy is clearly the best." if len(whole) > 1 else None
    base, name = baseline_of(data, best), f"{best.remedy} with {percent(best.accuracy.mean, 2)}"
    return replace(held_to(base, best), subject=name) if base else f"{name}."


def soonest(data: LargeBatchStudyData) -> str | None:
    """Return what reaches the target accuracy first, where that is significant."""
    reached = {cell.label: data.time_to_target(cell) for cell in data.cells}
    whole = [r for r in reached.values() if 0 < r.num_reached == r.cell.num_seeds]
    best = significantly_least(
        [r.cell for r in whole], lambda cell: reached[cell.label].trained_s_by_seed
    )
    if best is None or data.target is None:
        return None
    found = reached[best.label]
    assert found.trained_s is not None and found.epochs is not None
    return (
        f"{best.label} is the first of {len(whole)} that reach {percent(data.target, 1)} with "
        f"every seed: {seconds(found.trained_s)} of training, {found.epochs:.1f} epochs, "
        f"{found.updates:,.0f} updates."
    )
