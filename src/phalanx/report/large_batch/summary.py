"""Summary of a large-batch study for the terminal: a table and the findings."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from phalanx.report.content import make_table
from phalanx.report.large_batch.findings import findings
from phalanx.report.large_batch.study_data import LargeBatchStudyData, read_study_data
from phalanx.report.large_batch.tables import remedies
from phalanx.report.terminal import print_findings, terminal_table

COLUMNS = "remedy|batch#|rate#||accuracy#|worst#|best#|seeds#|div.#|to base#||"
"""In short those of the page's table that 80 columns have room for."""


def print_summary(folder: Path, console: Console) -> None:
    """Raises: UserError when the records cannot be read."""
    show(read_study_data(folder), console)


def show(data: LargeBatchStudyData, console: Console) -> None:
    table = make_table("", "", COLUMNS, remedies(data).rows)
    console.print(terminal_table(table, left_out=[""]))
    print_findings(findings(data), console)
