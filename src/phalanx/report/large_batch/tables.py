"""The tables of a large-batch study. Pure."""

from __future__ import annotations

from statistics import fmean

from phalanx.report.content import Table, make_table
from phalanx.report.format import UNKNOWN, fixed, percent, points
from phalanx.report.large_batch.accuracy_comparison import baseline_of
from phalanx.report.large_batch.study_data import BatchCell, LargeBatchStudyData

COLUMNS = (
    "remedy|batch#|learning rate#|updates an epoch#|accuracy#|worst seed#|best seed#|seeds#"
    "|diverged#|against the base#|gap#|epoch (s)#"
)


def remedies(data: LargeBatchStudyData) -> Table:
    """Return a table of every remedy at every batch."""
    return make_table(
        "Remedies",
        "Means over the seeds that came to their end. Against the base: percentage points of "
        "accuracy, to the same remedy, or else the base recipe, at the smallest batch, seed by "
        "seed. Gap: accuracy of the final model on training data less that on the validation data, "
        "in points.",
        COLUMNS,
        [remedy_row(data, cell) for cell in data.cells],
    )


def remedy_row(data: LargeBatchStudyData, cell: BatchCell) -> tuple[str, ...]:
    accuracy, base = cell.accuracy, baseline_of(data, cell)
    return (
        cell.remedy,
        f"{cell.batch_size:,}",
        f"{cell.learning_rate:.3g}",
        str(cell.updates_per_epoch or UNKNOWN),
        *(
            percent(value, 2) if accuracy else UNKNOWN
            for value in (
                (accuracy.mean, accuracy.low, accuracy.high) if accuracy else (0.0, 0.0, 0.0)
            )
        ),
        str(cell.num_seeds),
        str(len(cell.diverged)),
        _against(cell, base) if base and base is not cell else UNKNOWN,
        points(cell.gap.mean) if cell.gap else UNKNOWN,
        fixed(cell.epoch_s),
    )


def _against(cell: BatchCell, base: BatchCell) -> str:
    own, other = cell.accuracy_by_seed, base.accuracy_by_seed
    gaps = [own[seed] - other[seed] for seed in own.keys() & other.keys()]
    return points(fmean(gaps)) if gaps else UNKNOWN


def times(data: LargeBatchStudyData) -> Table:
    """Return a table of the time to the target accuracy."""
    target = data.target
    rows = [
        (
            cell.remedy,
            f"{cell.batch_size:,}",
            f"{reached.num_reached} of {cell.num_seeds}",
            UNKNOWN if reached.epochs is None else f"{reached.epochs:.1f}",
            UNKNOWN if reached.updates is None else f"{reached.updates:,.0f}",
            fixed(reached.trained_s),
        )
        for cell in data.cells
        if (reached := data.time_to_target(cell))
    ]
    return make_table(
        "To the target accuracy",
        ""
        if target is None
        else f"{percent(target, 1)}; means over the seeds that reached it, training time only.",
        "remedy|batch#|seeds that reached it#|epochs#|updates#|time (s)#",
        rows if target is not None else [],
    )
