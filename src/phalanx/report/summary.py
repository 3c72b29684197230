"""The table that a study ends with on the terminal."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from phalanx.report.comparison import Cell, layout_of
from phalanx.report.folder import StudyMeasures, read_folder
from phalanx.report.measures import RunMeasure
from phalanx.report.tables import status_text
from phalanx.report.wording import UNKNOWN, fixed, grouped, percent

COLUMNS = (
    "model",
    "strategy",
    "ranks",
    "threads",
    "batch",
    "epoch s",
    "images/s",
    "speed-up",
    "comm.",
    "accuracy",
    "status",
)
NUMERIC = frozenset(COLUMNS[2:-1])


def summary_table(folder: Path) -> Table:
    """The runs of a study or the one run in `folder`, a row each. Reads without colour.

    Raises UserError when the records cannot be read.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, justify="right" if name in NUMERIC else "left", no_wrap=True)
    for row in summary_rows(read_folder(folder)):
        table.add_row(*(Text(value) for value in row))  # Text: brackets in it are no markup
    return table


def summary_rows(measures: StudyMeasures) -> list[tuple[str, ...]]:
    """The cells of the table. A run's speed-up is that of its configuration over all seeds."""
    cells = {run.name: cell for cell in measures.cells for run in cell.runs}
    return [_row(measure, cells.get(measure.name)) for measure in measures.runs]


def _row(measure: RunMeasure, cell: Cell | None) -> tuple[str, ...]:
    if measure.run is None:
        return (measure.name, *[UNKNOWN] * (len(COLUMNS) - 2), status_text(measure))
    layout = layout_of(measure.run)
    accuracy = measure.trained[-1].validation_accuracy if measure.trained else None
    share = measure.communication_share
    return (
        measure.run.setting.model,
        layout.strategy,
        str(layout.ranks),
        str(layout.threads),
        layout.batch_label,
        fixed(measure.epoch_s),
        grouped(measure.images_per_s),
        UNKNOWN if cell is None or cell.speed_up is None else f"{cell.speed_up:.2f}",
        UNKNOWN if share is None else percent(share, 1),
        UNKNOWN if accuracy is None else percent(accuracy, 2),
        status_text(measure),
    )
