"""Plain values that a page is made of: charts with what stands around them, in rows and sections,
findings, tables; and the tables of every page. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Generic, TypeVar

import altair as alt
from rich import box
from rich.table import Table as TerminalTable
from rich.text import Text

from phalanx.records.schema import Environment
from phalanx.report.format import UNKNOWN, joined

Value = str | int | float | bool | None
Row = Mapping[str, Value]
AnyChart = alt.Chart | alt.LayerChart | alt.FacetChart
T = TypeVar("T")

HEIGHT_PIXELS = 250


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One chart of one workload."""

    label: str  # workload
    name: str  # id of the page's element, name of saved files
    title: str
    caption: str  # also its alternative text
    source: str  # events of the records
    runs: tuple[str, ...]  # the folders of these
    rows: tuple[Row, ...]  # drawn, and saved as CSV
    spec: Mapping[str, object]  # Vega-Lite over the named data set `rows`

    @property
    def table(self) -> Mapping[str, object]:
        """Rows as names and lists of values: a fifth of the size of a mapping for every row."""
        names = list(self.rows[0])
        return {"names": names, "rows": [[row[name] for name in names] for row in self.rows]}


def drawn_columns(spec: Mapping[str, object], rows: Iterable[Mapping[str, object]]) -> list[Row]:
    """Return the rows with the columns that a chart shows: as a field, or in an expression."""
    text = json.dumps(spec)
    shown = {one or other for one, other in re.findall(r'"field": "(\w+)"|datum\.(\w+)', text)}
    return [{name: row[name] for name in row if name in shown} for row in rows]  # type: ignore[misc]


def numbers(rows: Iterable[Row], field: str) -> list[float]:
    """Return the known values of a field."""
    return [float(str(value)) for row in rows if (value := row[field]) is not None]


def distinct(rows: Iterable[Row], field: str) -> list[str]:
    """Return the different values of a field, in the order of the rows."""
    return list(dict.fromkeys(str(row[field]) for row in rows))


def table() -> alt.NamedData:
    """Stands for the rows while a chart is put together."""
    return alt.NamedData(name="rows")


@dataclass(frozen=True)
class Column(Generic[T]):
    """A column of a table over items: the value of a cell, and its format where it is known.

    value: of an item, or the name of a column of a row.
    """

    title: str
    value: Callable[[T], Any] | str
    form: Callable[[Any], str] = str
    numeric: bool = True
    short: str | None = None  # title on the terminal; None where there is no room for it
    only: str = ""
    """Condition to be shown: none, `varied` (values differ), `known`, `wide` or `terminal`."""

    def cell(self, item: T) -> str:
        value = self.value(item) if callable(self.value) else item.get(self.value)  # type: ignore[attr-defined]
        return UNKNOWN if value is None else self.form(value)


def words(title: str, value: Callable[[T], Any] | str, **more: Any) -> Column[T]:
    """Return a column that is set to the left."""
    return Column(title, value, numeric=False, **more)


def by_place(titles: str) -> list[Column[tuple[Any, ...]]]:
    """Return the columns of rows of cells; `titles` with | between, numbers end in #."""
    return [
        Column(title.removesuffix("#"), itemgetter(place), numeric=title.endswith("#"))
        for place, title in enumerate(titles.split("|"))
    ]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Cells are text; `numeric` tells which columns are set to the right."""

    title: str
    note: str
    columns: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True)
class ChartRow:
    """One question, drawn for every workload."""

    title: str
    caption: str
    figures: Sequence[Figure]


@dataclass(frozen=True, kw_only=True)
class Section:
    name: str
    title: str
    rows: Sequence[ChartRow]

    @property
    def single(self) -> bool:
        """Return whether every row has one chart, so that rows can stand beside one another."""
        return all(len(row.figures) == 1 for row in self.rows)


@dataclass(frozen=True)
class KeyFigure:
    """A number for the first screen, with what it means."""

    label: str
    value: str
    meaning: str
    beside: str


def chart_row(figures: Sequence[Figure], *, title: str = "") -> ChartRow | None:
    """Return the charts that could be drawn as a row; None without any.

    title: of a row of different charts, whose captions are then joined; else the first chart's.
    """
    if not figures:
        return None
    shown = figures if title else figures[:1]
    caption = " ".join(figure.caption for figure in shown)
    return ChartRow(title=title or figures[0].title, caption=caption, figures=figures)


def make_table(title: str, note: str, columns: Sequence[Column[T]], items: Iterable[T]) -> Table:
    """Return the table of the items, a row each."""
    return Table(
        title=title,
        note=note,
        columns=tuple(column.title for column in columns),
        numeric=tuple(column.numeric for column in columns),
        rows=tuple(tuple(column.cell(item) for column in columns) for item in items),
    )


def environments(known: Sequence[Environment]) -> Table:
    """Return a table of the environment; marks values that differ between runs."""
    facts: dict[str, list[str]] = {}
    for what, value in (fact for each in known for fact in facts_of(each).items()):
        if value not in facts.setdefault(what, []):
            facts[what].append(value)
    differ = [what for what, values in facts.items() if len(values) > 1]
    note = f"Differs between runs: {joined(differ)}." if differ else ""
    rows = [(what, "; ".join(values)) for what, values in facts.items()]
    loads = [e.load_average for e in known if e.load_average is not None]
    if loads:
        rows.append(("load when runs began", f"{min(loads):.2f} to {max(loads):.2f}"))
    return make_table("Environment", note, by_place("what|value"), rows)


def sources(figures: Iterable[Figure]) -> Table:
    """Return the records each chart was drawn from."""
    return make_table(
        "Sources",
        "Every run is a folder with run.json and a rank-<r>.jsonl for each rank.",
        by_place("chart|events and fields|run folders"),
        [(f"{each.title}, {each.label}", each.source, ", ".join(each.runs)) for each in figures],
    )


FACTS = {
    "hostname": "host",
    "processor": "processor",
    "cores": "cores",
    "memory_bytes": "memory",
    "operating_system": "operating system",
    "python": "Python",
    "torch": "PyTorch",
    "mpi": "MPI",  # None where a run used none
    "packages": "packages",
    "phalanx": "Phalanx",
    "commit": "commit",
}
"""Fields of an environment, in words."""


def facts_of(environment: Environment) -> dict[str, str]:
    """Return what is known of an environment, by the words of FACTS."""
    known = {name: getattr(environment, name) for name in FACTS}
    if environment.memory_bytes is not None:
        known["memory_bytes"] = f"{environment.memory_bytes / 2**30:.1f} GiB"
    packages = sorted(environment.packages.items())
    known["packages"] = ", ".join(f"{name} {version}" for name, version in packages)
    return {FACTS[name]: str(value) for name, value in known.items() if value is not None}


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
