"""The table that a scaling study ends with on the terminal."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table as TerminalTable
from rich.text import Text

from phalanx.report.comparison import Cell, layout_of
from phalanx.report.content import Table, make_table
from phalanx.report.folder import StudyMeasures, read_folder
from phalanx.report.format import UNKNOWN, fixed, grouped, share
from phalanx.report.measures import RunMeasure
from phalanx.report.scaling.findings import findings, headline
from phalanx.report.tables import SAYS
from phalanx.report.terminal import print_findings, terminal_table

COLUMNS = (
    "model|strategy|ranks#|threads#|batch#|seed#|epoch s#|images/s#|speed-up#|comm %#|acc. %#"
    "|status"
)
TOLD = ("Best configuration", "MPI against Gloo", "Disturbance", "Not made alike", "Not completed")
ONLY_WHEN_VARIED = ("batch", "seed")


def show_summary(folder: Path, console: Console) -> None:
    """The table, what it shows and what it cannot tell.

    Raises: UserError when the records cannot be read.
    """
    measures = read_folder(folder)
    console.print(summary_table(measures))
    console.print(Text(headline(measures), style="bold"))
    print_findings((topic for topic in findings(measures) if topic.title in TOLD), console)


def summary_table(measures: StudyMeasures) -> TerminalTable:
    """The runs of a study or a single run, a row each; 80 columns are enough for it."""
    table = runs_in_short(measures)
    values = {name: {row[i] for row in table.rows} for i, name in enumerate(table.columns)}
    left_out = [name for name in ONLY_WHEN_VARIED if len(values[name] - {UNKNOWN}) < 2]
    if "seed" not in left_out and values["status"] == {"completed"}:
        left_out.append("status")  # 80 columns have no room for both
    return terminal_table(table, left_out=left_out)


def runs_in_short(measures: StudyMeasures) -> Table:
    """Return a row a run. Its speed-up is that of its configuration over all seeds."""
    cells = {run.name: cell for cell in measures.cells for run in cell.runs}
    return make_table("", "", COLUMNS, [_row(run, cells.get(run.name)) for run in measures.runs])


def _row(measure: RunMeasure, cell: Cell | None) -> tuple[str, ...]:
    status = SAYS.get(measure.status, measure.status)
    if measure.run is None:
        return (measure.name, *[UNKNOWN] * (COLUMNS.count("|") - 1), status)
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
        share(measure.communication_share, 1),
        share(accuracy, 2),
        status,
    )
