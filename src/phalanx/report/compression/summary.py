"""Summary of a compression study for the terminal: a table and the findings."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from phalanx.report.compression.findings import findings
from phalanx.report.compression.study_data import read_study_data
from phalanx.report.compression.tables import compressors
from phalanx.report.terminal import print_findings, terminal_table

LEFT_OUT = ("bytes a step", "points", "over seeds", "begins to pay")
"""Of the page's table: the rest fits 80 columns, and the findings say what is left out."""


def print_summary(folder: Path, console: Console) -> None:
    """Raises: UserError when the records cannot be read."""
    data = read_study_data(folder)
    console.print("Milliseconds of a step, in brackets how many times as fast as float32:")
    console.print(terminal_table(compressors(data, unit=""), left_out=LEFT_OUT, padding=1))
    print_findings(findings(data), console)
