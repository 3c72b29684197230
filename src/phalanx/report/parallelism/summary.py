"""Summary of a parallelism study for the terminal: tables and a few findings."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.text import Text

from phalanx.report.content import short_table
from phalanx.report.parallelism.findings import findings
from phalanx.report.parallelism.study_data import ParallelismStudyData, read_study_data
from phalanx.report.parallelism.tables import (
    COMPARISON_IN_SHORT,
    SCRATCH_IN_SHORT,
    lines,
    scratch_lines,
)
from phalanx.report.terminal import print_findings, terminal_table

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
        table = short_table(COMPARISON_IN_SHORT, lines([model]))
        console.print(terminal_table(table, left_out=left_out))
    if data.scratch:
        console.print(Text("from scratch", style="bold"))
        console.print(terminal_table(short_table(SCRATCH_IN_SHORT, scratch_lines(data.scratch))))
    print_findings(findings(data), console)
