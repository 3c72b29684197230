"""Summary of a compression study for the terminal: a table and the findings."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from phalanx.report.compression.findings import findings
from phalanx.report.compression.study_data import CompressionStudyData, read_study_data
from phalanx.report.compression.tables import compressors
from phalanx.report.terminal import print_findings

LEFT_OUT = ("bytes a step", "points", "over seeds", "begins to pay")
"""Of the page's table: with what is left four places fit into 80 columns, and the findings say the
rest."""


def print_summary(folder: Path, console: Console) -> None:
    """Raises: UserError when the records cannot be read."""
    show(read_study_data(folder), console)


def show(data: CompressionStudyData, console: Console) -> None:
    console.print("Milliseconds of a step, in brackets how many times as fast as float32:")
    console.print(_table(data))
    print_findings(findings(data), console)


def _table(data: CompressionStudyData) -> Table:
    page = compressors(data)
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
    shown = [i for i, name in enumerate(page.columns) if name not in LEFT_OUT]
    for i in shown:
        made.add_column(
            page.columns[i].removesuffix(" (ms)"),
            justify="right" if page.numeric[i] else "left",
            no_wrap=True,
        )
    for row in page.rows:
        made.add_row(*(Text(row[i].removesuffix(" %")) for i in shown))
    return made
