"""The tables of a large-batch study. Pure."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

from phalanx.report.comparison import SeedSpread
from phalanx.report.content import Column, Table, make_table, words
from phalanx.report.format import fixed, grouped, percent, points, two_decimals
from phalanx.report.large_batch.accuracy_comparison import baseline_of
from phalanx.report.large_batch.study_data import BatchCell, LargeBatchStudyData, TimeToTarget


def columns(data: LargeBatchStudyData) -> list[Column[BatchCell]]:
    """Return the columns of the remedies, with short titles where 80 columns have room."""

    def spread(value: Callable[[SeedSpread], float]) -> Callable[[BatchCell], float | None]:
        return lambda cell: value(cell.accuracy) if cell.accuracy else None

    return [
        words("remedy", lambda cell: cell.remedy, short="remedy"),
        Column("batch", lambda cell: cell.batch_size, grouped, short="batch"),
        Column("learning rate", lambda cell: cell.learning_rate, "{:.3g}".format, short="rate"),
        Column("updates per epoch", lambda cell: cell.updates_per_epoch or None),
        Column("accuracy", spread(lambda s: s.mean), two_decimals, short="accuracy"),
        Column("worst seed", spread(lambda s: s.low), two_decimals, short="worst"),
        Column("best seed", spread(lambda s: s.high), two_decimals, short="best"),
        Column("seeds", lambda cell: cell.num_seeds, short="seeds"),
        Column("diverged", lambda cell: len(cell.diverged), short="div."),
        Column("against the base", lambda cell: _gain(data, cell), points, short="to base"),
        Column("gap", lambda cell: cell.gap and cell.gap.mean, points),
        Column("epoch (s)", lambda cell: cell.epoch_s, fixed),
    ]


def remedies(data: LargeBatchStudyData) -> Table:
    """Return a table of every remedy at every batch."""
    return make_table(
        "Remedies",
        "Means over the seeds that came to their end. Against the base: percentage points of "
        "accuracy, to the same remedy, or else the base recipe, at the smallest batch, seed by "
        "seed. Gap: accuracy of the final model on training data less that on the validation data, "
        "in points.",
        columns(data),
        data.cells,
    )


def _gain(data: LargeBatchStudyData, cell: BatchCell) -> float | None:
    """Return the mean difference of accuracy to the base, over the seeds that both have."""
    base = baseline_of(data, cell)
    if base is None or base is cell:
        return None
    own, other = cell.accuracy_by_seed, base.accuracy_by_seed
    gaps = [own[seed] - other[seed] for seed in own.keys() & other.keys()]
    return fmean(gaps) if gaps else None


TIME_COLUMNS: tuple[Column[TimeToTarget], ...] = (
    words("remedy", lambda reached: reached.cell.remedy),
    Column("batch", lambda reached: reached.cell.batch_size, grouped),
    Column("seeds that reached it", lambda r: f"{r.num_reached} of {r.cell.num_seeds}"),
    Column("epochs", lambda reached: reached.epochs, "{:.1f}".format),
    Column("updates", lambda reached: reached.updates, grouped),
    Column("time (s)", lambda reached: reached.trained_s, fixed),
)


def times(data: LargeBatchStudyData) -> Table:
    """Return a table of the time to the target accuracy."""
    target = data.target
    if target is None:
        return make_table("To the target accuracy", "", TIME_COLUMNS, [])
    return make_table(
        "To the target accuracy",
        f"{percent(target, 1)}; means over the seeds that reached it, training time only.",
        TIME_COLUMNS,
        [data.time_to_target(cell) for cell in data.cells],
    )
