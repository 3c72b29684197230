"""The table that a study ends with on the terminal."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from phalanx.report.comparison import Cell, layout_of
from phalanx.report.findings import findings, headline
from phalanx.report.folder import StudyMeasures, read_folder
from phalanx.report.format import UNKNOWN, fixed, grouped
from phalanx.report.measures import RunMeasure
from phalanx.report.tables import SAYS
from phalanx.report.terminal import print_findings

COLUMNS = (
    "model",
    "strategy",
    "ranks",
    "threads",
    "batch",
    "seed",
    "epoch s",
    "images/s",
    "speed-up",
    "comm %",
    "acc. %",
    "status",
)
WORDS = frozenset({"model", "strategy", "status"})
TOLD = ("Best configuration", "MPI against Gloo", "Disturbance", "Not made alike", "Not completed")
ONLY_WHEN_VARIED = frozenset({"batch", "seed"})


def show_summary(folder: Path, console: Console) -> None:
    """The table, what it shows and what it cannot tell.

    Raises: UserError when the records cannot be read.
    """
    measures = read_folder(folder)
    console.print(summary_table(folder))
    console.print(Text(headline(measures), style="bold"))
    print_findings((topic for topic in findings(measures) if topic.title in TOLD), console)


def summary_table(folder: Path) -> Table:
    """The runs of a study or the one run in `folder`, a row each; 80 columns are enough for it.

    Raises UserError when the records cannot be read.
    """
    rows = summary_rows(read_folder(folder))
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    shown = [i for i, name in enumerate(COLUMNS) if _is_shown(name, {row[i] for row in rows})]
    seed, status = COLUMNS.index("seed"), COLUMNS.index("status")
    if seed in shown and all(row[status] == "completed" for row in rows):
        shown.remove(status)  # 80 columns have no room for both
    for i in shown:
        justify: JustifyMethod = "left" if COLUMNS[i] in WORDS else "right"
        table.add_column(
            COLUMNS[i], justify=justify, overflow="fold", no_wrap=COLUMNS[i] not in WORDS
        )
    for row in rows:
        table.add_row(*(Text(row[i]) for i in shown))  # Text: brackets in it are no markup
    return table


def summary_rows(measures: StudyMeasures) -> list[tuple[str, ...]]:
    """The cells of the table. A run's speed-up is that of its configuration over all seeds."""
    cells = {run.name: cell for cell in measures.cells for run in cell.runs}
    return [_row(measure, cells.get(measure.name)) for measure in measures.runs]


def _is_shown(column: str, values: set[str]) -> bool:
    return column not in ONLY_WHEN_VARIED or len(values - {UNKNOWN}) > 1


def _row(measure: RunMeasure, cell: Cell | None) -> tuple[str, ...]:
    status = SAYS.get(measure.status, measure.status)
    if measure.run is None:
        return (measure.name, *[UNKNOWN] * (len(COLUMNS) - 2), status)
    layout = layout_of(measure.run)
    accuracy = measure.trained[-1].validation_accuracy if measure.trained else None
    return (
        measure.run.setting.model,
        layout.strategy,
        str(layout.ranks),
        str(layout.threads),
        layout.batch_label,
        str(measure.run.setting.seed),
        fixed(measure.epoch_s),
        grouped(measure.images_per_s),
        UNKNOWN if cell is None or cell.speed_up is None else f"{cell.speed_up:.2f}",
        _percent(measure.communication_share, 1),
        _percent(accuracy, 2),
        status,
    )


def _percent(share: float | None, decimals: int) -> str:
    return UNKNOWN if share is None else f"{share * 100:.{decimals}f}"
