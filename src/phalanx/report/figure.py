"""A chart with what stands around it: title, caption, the rows behind it, where they come from."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import altair as alt

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
