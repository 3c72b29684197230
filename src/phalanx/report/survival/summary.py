"""Summary of a survival study for the terminal: a table and the findings."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from phalanx.report.content import short_table
from phalanx.report.survival.findings import findings
from phalanx.report.survival.study_data import read_study_data
from phalanx.report.survival.tables import COLUMNS
from phalanx.report.terminal import print_findings, terminal_table


def print_summary(folder: Path, console: Console) -> None:
    """Raises: UserError when the records cannot be read."""
    data = read_study_data(folder)
    console.print(terminal_table(short_table(COLUMNS, data.cells)))
    print_findings(findings(data), console)
