"""Tables on the terminal, at the end of a study or a measurement."""

from __future__ import annotations

from collections.abc import Callable

from rich import box
from rich.table import Table as TerminalTable
from rich.text import Text

from phalanx.report.content import Table


def terminal_table(
    table: Table, *, style: Callable[[int, str], str] | None = None
) -> TerminalTable:
    """Return a table of the page for the terminal; percent signs are left to the heading.

    style: of a cell, by the number of its row and the name of its column.
    """
    made = TerminalTable(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 0, 0, 0))
    for name, is_numeric in zip(table.columns, table.numeric, strict=True):
        made.add_column(name, justify="right" if is_numeric else "left", no_wrap=True)
    for number, row in enumerate(table.rows):
        cells = zip(row, table.columns, strict=True)
        made.add_row(
            # Text: brackets in it are no markup.
            *(Text(v.removesuffix(" %"), style=style(number, c) if style else "") for v, c in cells)
        )
    return made
