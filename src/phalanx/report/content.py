"""Plain values that a page is made of: charts in rows and sections, findings, tables. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Generic, TypeVar

from phalanx.report.figure import Figure
from phalanx.report.format import UNKNOWN

T = TypeVar("T")


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


@dataclass(frozen=True, kw_only=True)
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
