"""What a compression study ends with on the terminal: a table and the findings."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from phalanx.report.compression.findings import findings
from phalanx.report.compression.material import Material, read_material
from phalanx.report.compression.tables import compressors

LEFT_OUT = ("bytes a step", "points", "over seeds")


def print_summary(folder: Path, console: Console) -> None:
    """Raises: UserError when the records cannot be read."""
    show(read_material(folder), console)


def show(material: Material, console: Console) -> None:
    console.print(_table(material))
    for topic in findings(material):
        console.print(Text(topic.title, style="bold"))
        for sentence in topic.sentences:
            console.print(f"  {sentence.label}: {sentence.text}", markup=False)


def _table(material: Material) -> Table:
    page, made = compressors(material), Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    shown = [i for i, name in enumerate(page.columns) if name not in LEFT_OUT]
    for i in shown:
        made.add_column(
            page.columns[i], justify="right" if page.numeric[i] else "left", no_wrap=True
        )
    for row in page.rows:
        made.add_row(*(Text(row[i]) for i in shown))
    return made
