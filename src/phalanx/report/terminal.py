"""Tables and findings on the terminal, at the end of a study or a measurement."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from rich import box
from rich.console import Console
from rich.table import Table as TerminalTable
from rich.text import Text

from phalanx.report.content import Table, Topic


def print_findings(
    topics: Iterable[Topic], console: Console, *, without_labels: Collection[str] = ()
) -> None:
    """Print a title a topic, a line a sentence."""
    for topic in topics:
        console.print(Text(topic.title, style="bold"))
        for sentence in topic.sentences:
            shown = sentence.label and sentence.label not in without_labels
            label = f"{sentence.label}: " if shown else ""
            console.print(f"  {label}{sentence.text}", markup=False)


def finding_lines(topics: Iterable[Topic]) -> list[str]:
    """Return every finding as a line, with its topic and label first."""
    return [
        f"{topic.title}: {sentence.label + ': ' if sentence.label else ''}{sentence.text}"
        for topic in topics
        for sentence in topic.sentences
    ]


def terminal_table(
    table: Table,
    *,
    left_out: Collection[str] = (),
    padding: int = 0,
    style: Callable[[int, str], str] | None = None,
    section_ends: Collection[int] = (),
) -> TerminalTable:
    """Return a table of the page for the terminal; percent signs are left to the heading.

    left_out: columns. style: of a cell, by the number of its row and the name of its column.
    section_ends: numbers of the rows that have a line below.
    """
    made = TerminalTable(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, padding, 0, 0))
    shown = [i for i, name in enumerate(table.columns) if name not in left_out]
    for i in shown:
        justify = "right" if table.numeric[i] else "left"
        made.add_column(table.columns[i], justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for number, row in enumerate(table.rows):
        cells = [
            # Text: brackets in it are no markup.
            Text(row[i].removesuffix(" %"), style=style(number, table.columns[i]) if style else "")
            for i in shown
        ]
        made.add_row(*cells, end_section=number in section_ends)
    return made
