"""The table that a scaling study ends with on the terminal."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table as TerminalTable
from rich.text import Text

from phalanx.report.comparison import final_accuracy, layout_of
from phalanx.report.content import Column, Table, make_table, words
from phalanx.report.folder import StudyMeasures, read_folder
from phalanx.report.format import UNKNOWN, fixed, grouped, one_decimal, two_decimals
from phalanx.report.measures import RunMeasure
from phalanx.report.scaling.findings import findings, headline
from phalanx.report.tables import SAYS, layout_columns
from phalanx.report.terminal import print_findings, terminal_table

TOLD = (
    *("Best configuration", "Network", "MPI against Gloo"),
    *("Disturbance", "Not made alike", "Not completed"),
)
ONLY_WHEN_VARIED = ("nodes", "batch", "seed")


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
    columns: list[Column[RunMeasure]] = [
        words("model", lambda run: run.run.setting.model if run.run else run.name),
        *layout_columns(lambda run: run.run and layout_of(run.run)),
        Column("nodes", lambda run: run.setting and run.setting.nodes),
        Column("seed", lambda run: run.setting and run.setting.seed),
        Column("epoch s", lambda run: run.epoch_s, fixed),
        Column("samples/s", lambda run: run.images_per_s, grouped),
        Column("speed-up", lambda run: (c := cells.get(run.name)) and c.speed_up, "{:.2f}".format),
        Column("comm %", lambda run: run.communication_share, one_decimal),
        Column("acc. %", final_accuracy, two_decimals),
        words("status", lambda run: SAYS.get(run.status, run.status)),
    ]
    return make_table("", "", columns, measures.runs)
