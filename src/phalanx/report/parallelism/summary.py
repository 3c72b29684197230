"""Summary of a parallelism study for the terminal: tables and a few findings."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.text import Text

from phalanx.report.content import Table, make_table
from phalanx.report.parallelism.findings import findings
from phalanx.report.parallelism.study_data import (
    ModelData,
    ParallelCell,
    ParallelismStudyData,
    read_study_data,
)
from phalanx.report.parallelism.tables import comparison_row, scratch
from phalanx.report.terminal import print_findings, terminal_table

COLUMNS = "scheme|p#|step ms#|epoch s#|gain#|sent#|=|kept#|wait %#|loss#|acc. %#"
SCRATCH_COLUMNS = "scheme|hidden#|workers#|ranks#|epoch s#|wait %#|sent#|=|loss#|acc. %#"
ONLY_WHEN_WIDE = ("step ms",)
WIDE_COLUMNS = 100


def print_summary(folder: Path, console: Console) -> None:
    """Raises: UserError when the records cannot be read."""
    show(read_study_data(folder), console)


def show(data: ParallelismStudyData, console: Console) -> None:
    """The tables of all models and of the network from scratch, and the findings."""
    left_out = () if console.width >= WIDE_COLUMNS else ONLY_WHEN_WIDE
    for model in data.models:
        console.print(Text(model.label, style="bold"))
        rows = [_row(model, cell) for cell in model.cells]
        console.print(terminal_table(make_table("", "", COLUMNS, rows), left_out=left_out))
    if data.scratch:
        console.print(Text("from scratch", style="bold"))
        console.print(terminal_table(_scratch(scratch(data.scratch))))
    print_findings(findings(data), console)


def _row(model: ModelData, cell: ParallelCell) -> tuple[str, ...]:
    """Return the columns of the page's row that fit the terminal."""
    scheme, _, ranks, step, epoch, gain, _, sent, mark, kept, _, *rest = comparison_row(model, cell)
    return scheme, ranks, step, epoch, gain, sent, mark[:1], kept, *rest


def _scratch(page: Table) -> Table:
    rows = [(*row[:7], row[8][:1], *row[9:]) for row in page.rows]
    return make_table("", "", SCRATCH_COLUMNS, rows)
