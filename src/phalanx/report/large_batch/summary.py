"""Summary of a large-batch study for the terminal: a table and the findings."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from phalanx.report.content import short_table
from phalanx.report.large_batch.findings import findings
from phalanx.report.large_batch.study_data import LargeBatchStudyData, read_study_data
from phalanx.report.large_batch.tables import columns
from phalanx.report.terminal import print_findings, terminal_table


def print_summary(folder: Path, console: Console) -> None:
    """Raises: UserError when the records cannot be read."""
    show(read_study_data(folder), console)


def show(data: LargeBatchStudyData, console: Console) -> None:
    console.print(terminal_table(short_table(columns(data), data.cells)))
    print_findings(findings(data), console)
