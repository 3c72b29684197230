"""Comparison of a large batch's accuracy with that of the smallest one, with its interval.

Each remedy is held to its own recipe at the smallest batch, or to the base recipe where it is that
one with another learning rate: what a change of the optimizer brings is not what a batch costs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from phalanx.report.comparison import counted
from phalanx.report.findings import AccuracyDifference, accuracy_difference
from phalanx.report.large_batch.study_data import BatchCell, LargeBatchStudyData, empty_cell
from phalanx.report.statistics import not_told_apart, paired_difference

MARGIN = 0.0025
"""A batch holds the accuracy where it is seen to cost less than this, and not seen to cost
anything."""


@dataclass(frozen=True, kw_only=True)
class AccuracyComparison:
    """A cell beside what it is held to."""

    cell: BatchCell
    base: BatchCell
    finding: AccuracyDifference

    @property
    def verdict(self) -> str:
        return self.finding.verdict


def baseline_of(data: LargeBatchStudyData, cell: BatchCell) -> BatchCell | None:
    """The same remedy at the smallest batch, else the base recipe where its optimizer is the
    same."""
    smallest = data.batch_sizes[0]
    own, plain = data.cell(cell.remedy, smallest), data.cell("plain", smallest)
    if own is not None:
        return own
    return plain if plain is not None and plain.optimizer == cell.optimizer else None


def compare_to_baseline(
    data: LargeBatchStudyData, remedy: str, *, comparisons: int | None = None
) -> list[AccuracyComparison]:
    """Compare every larger batch of a remedy with its baseline, the smallest first.

    A batch without a result is compared as "unclear".

    comparisons: that are made together; None: those of this remedy.
    """
    larger = {c.batch_size: c for c in larger_cells(data) if c.remedy == remedy}
    base = baseline_of(data, next(iter(larger.values()))) if larger else None
    if base is None:
        return []
    cells = [larger.get(size) or empty_cell(remedy, size) for size in data.batch_sizes[1:]]
    number = comparisons or len(larger)
    return [
        AccuracyComparison(cell=cell, base=base, finding=held_to(base, cell, number))
        for cell in cells
    ]


def held_to(base: BatchCell, cell: BatchCell, comparisons: int = 1) -> AccuracyDifference:
    """Compare a cell with its baseline, seed by seed."""
    found = accuracy_difference(
        cell.accuracy_by_seed,
        base.accuracy_by_seed,
        subject=f"batch {cell.batch_size:,}",
        against=base.label,
        comparisons=comparisons,
        margin=MARGIN,
    )
    if cell.diverged:
        facts = f"{len(cell.diverged)} of {counted(cell.num_seeds, 'seed')}"
        return replace(found, verdict="diverged", interval=None, estimate=None, facts=facts)
    if not cell.num_seeds:
        return replace(found, facts="no run of it came to its end")
    return replace(found, verdict="unclear") if base.diverged else found


def larger_cells(data: LargeBatchStudyData) -> list[BatchCell]:
    return [cell for cell in data.cells if cell.batch_size > data.batch_sizes[0]]


def largest_holding(results: Sequence[AccuracyComparison]) -> AccuracyComparison | None:
    """The largest batch up to which every batch of the study holds."""
    last = None
    for result in results:
        if result.verdict != "holds":
            break
        last = result
    return last


def largest_holding_by_remedy(data: LargeBatchStudyData) -> list[BatchCell]:
    """Return each remedy's largest batch up to which all hold, where there is one.

    Corrected for all comparisons together.
    """
    number = len(larger_cells(data))
    found = [
        largest_holding(compare_to_baseline(data, r, comparisons=number)) for r in data.remedies
    ]
    return [result.cell for result in found if result is not None]


def significantly_least(
    cells: Sequence[BatchCell], values_of: Callable[[BatchCell], Mapping[int, float]]
) -> BatchCell | None:
    """The cell with the smallest values, where it is seen to be below every other, seed by seed;
    None where that cannot be told."""
    known = [(cell, values) for cell in cells if (values := values_of(cell))]
    if len(known) < 2:
        return None
    best, least = min(known, key=lambda pair: fmean(pair[1].values()))
    others = [values for cell, values in known if cell is not best]
    number = len(cells) - 1
    rivals = not_told_apart(
        others, lambda values: paired_difference(values, least, comparisons=number), neutral=0
    )
    return None if rivals or len(known) < len(cells) else best
