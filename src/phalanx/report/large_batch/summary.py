"""Summary of a large-batch study for the terminal: a table and the findings."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from phalanx.report.large_batch.findings import findings
from phalanx.report.large_batch.study_data import LargeBatchStudyData, read_study_data
from phalanx.report.large_batch.tables import remedies
from phalanx.report.terminal import print_findings

COLUMNS = {
    "remedy": "remedy",
    "batch": "batch",
    "learning rate": "rate",
    "accuracy": "accuracy",
    "worst seed": "worst",
    "best seed": "best",
    "seeds": "seeds",
    "diverged": "div.",
    "against the base": "to base",
}
"""Of the page's table those that 80 columns have room for, in short."""


def print_summary(folder: Path, console: Console) -> None:
    """Raises: UserError when the records cannot be read."""
    show(read_study_data(folder), console)


def show(data: LargeBatchStudyData, console: Console) -> None:
    console.print(_table(data))
    print_findings(findings(data), console)


def _table(data: LargeBatchStudyData) -> Table:
    page, made = remedies(data), Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    shown = [i for i, name in enumerate(page.columns) if name in COLUMNS]
    for i in shown:
        justify: Literal["left", "right"] = "right" if page.numeric[i] else "left"
        made.add_column(COLUMNS[page.columns[i]], justify=justify, no_wrap=True)
    for row in page.rows:
        made.add_row(*(Text(row[i].removesuffix(" %")) for i in shown))
    return made
