"""Summary of a parallelism study for the terminal: tables and a few findings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from phalanx.report.findings import not_completed
from phalanx.report.parallelism.findings import findings
from phalanx.report.parallelism.study_data import (
    ModelData,
    ParallelCell,
    ParallelismStudyData,
    read_study_data,
)
from phalanx.report.parallelism.tables import comparison_row, scratch
from phalanx.report.tables import Table as PageTable
from phalanx.report.tables import make_table
from phalanx.report.terminal import print_findings

COLUMNS = "scheme|p#|step ms#|epoch s#|gain#|sent#|=|kept#|wait %#|loss#|acc. %#"
ONLY_WHEN_WIDE = frozenset({"step ms"})
WIDE_COLUMNS = 100
TOLD = ("Which scheme wins", "Memory", "Bytes", "The same mathematics", "All-reduce on messages")


def print_summary(folder: Path, console: Console) -> None:
    """Raises: UserError when the records cannot be read."""
    show(read_study_data(folder), console)


def show(data: ParallelismStudyData, console: Console) -> None:
    """The tables of all models and of the network from scratch, findings, what failed."""
    wide = console.width >= WIDE_COLUMNS
    for model in data.models:
        console.print(Text(model.label, style="bold"))
        console.print(model_table(model, wide=wide))
    if data.scratch:
        console.print(Text("from scratch", style="bold"))
        console.print(scratch_table(data.scratch))
    print_findings((topic for topic in findings(data) if topic.title in TOLD), console)
    if text := not_completed(data.measures):
        console.print(f"not completed: {text}", markup=False)


def model_table(model: ModelData, *, wide: bool) -> Table:
    """Schemes by increasing ranks p; 80 columns are enough where `wide` is not asked for."""
    rows = [_row(model, cell) for cell in model.cells]
    table = make_table("", "", COLUMNS, rows)
    return _drawn(table, left_out=frozenset() if wide else ONLY_WHEN_WIDE)


def _row(model: ModelData, cell: ParallelCell) -> tuple[str, ...]:
    """Return the columns of the page's row that fit the terminal."""
    scheme, _, ranks, step, epoch, gain, _, sent, mark, kept, _, wait, loss, accuracy = (
        comparison_row(model, cell)
    )
    bare = (wait.removesuffix(" %"), loss, accuracy.removesuffix(" %"))
    return scheme, ranks, step, epoch, gain, sent, mark[:1], kept, *bare


def scratch_table(cells: Sequence[ParallelCell]) -> Table:
    """The network from scratch."""
    whole = scratch(cells)
    rows = [
        (
            *row[:5],
            row[5].removesuffix(" %"),
            row[6],
            row[8][:1],
            row[9],
            row[10].removesuffix(" %"),
        )
        for row in whole.rows
    ]
    columns = "scheme|hidden#|workers#|ranks#|epoch s#|wait %#|sent#|=|loss#|acc. %#"
    return _drawn(make_table("", "", columns, rows), left_out=frozenset())


def _drawn(table: PageTable, *, left_out: frozenset[str]) -> Table:
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    shown = [i for i, name in enumerate(table.columns) if name not in left_out]
    for i in shown:
        made.add_column(
            table.columns[i], justify="right" if table.numeric[i] else "left", no_wrap=True
        )
    for row in table.rows:
        made.add_row(*_texts(row, shown))
    return made


def _texts(row: Sequence[str], shown: Sequence[int]) -> list[Text]:
    return [Text(row[i]) for i in shown]  # Text: brackets in it are no markup
