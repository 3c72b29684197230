"""Summary of a compression study for the terminal: a table and the findings."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from phalanx.report.compression.findings import findings
from phalanx.report.compression.study_data import read_study_data
from phalanx.report.compression.tables import columns
from phalanx.report.content import short_table
from phalanx.report.terminal import print_findings, terminal_table


def print_summary(folder: Path, console: Console) -> None:
    """Raises: UserError when the records cannot be read."""
    data = read_study_data(folder)
    console.print("Milliseconds of a step, in brackets how many times as fast as float32:")
    console.print(terminal_table(short_table(columns(data, unit=""), data.compressors), padding=1))
    print_findings(findings(data), console)
