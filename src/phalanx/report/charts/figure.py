"""A chart with what stands around it: title, caption, the rows behind it, where they come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import altair as alt

Value = str | int | float | bool | None
Row = Mapping[str, Value]
AnyChart = alt.Chart | alt.LayerChart | alt.FacetChart
T = TypeVar("T")

HEIGHT_PIXELS = 250


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One chart of one workload."""

    name: str  # id of the page's element, name of saved files
    title: str
    caption: str  # also its alternative text
    source: str  # which events of the records it was computed from
    runs: tuple[str, ...]  # the folders of these
    rows: tuple[Row, ...]  # what is drawn, and saved as CSV
    spec: Mapping[str, object]  # Vega-Lite over the named data set `rows`


@dataclass(frozen=True, kw_only=True)
class Chart(Generic[T]):
    """A question about data: the rows behind it, the marks that show them, and its words."""

    title: str
    caption: str
    source: str
    rows: Callable[[T], Sequence[Row]]
    runs: Callable[[T], Sequence[str]]
    draw: Callable[[Sequence[Row]], AnyChart]
    """Marks over `table()`."""
    field: str | None = None
    """Rows that do not know it are left out."""
    least: int = 1  # rows
    height: int | Callable[[Sequence[Row]], int] = HEIGHT_PIXELS

    def __call__(self, data: T, name: str) -> Figure | None:
        """Return the chart of `data`, which follows the width of the page; None with too few rows.

        name: of the page's element and of saved files.
        """
        field = self.field
        rows = [row for row in self.rows(data) if field is None or row[field] is not None]
        if len(rows) < self.least:
            return None
        height = self.height if isinstance(self.height, int) else self.height(rows)
        drawn = self.draw(rows).properties(
            width="container",
            height=height,
            autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
            description=f"{self.title}. {self.caption}",
        )
        spec = drawn.to_dict()
        spec.pop("config", None)  # the page sets the theme of all charts
        return Figure(
            name=name,
            title=self.title,
            caption=self.caption,
            source=self.source,
            runs=tuple(dict.fromkeys(self.runs(data))),
            rows=tuple(rows),
            spec=spec,
        )


def numbers(rows: Iterable[Row], field: str) -> list[float]:
    """Return the known values of a field."""
    return [float(str(value)) for row in rows if (value := row[field]) is not None]


def distinct(rows: Iterable[Row], field: str) -> list[str]:
    """Return the different values of a field, in the order of the rows."""
    return list(dict.fromkeys(str(row[field]) for row in rows))


def table() -> alt.NamedData:
    """Stands for the rows while a chart is put together."""
    return alt.NamedData(name="rows")
