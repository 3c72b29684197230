"""The values that say what a page holds: quantities, claims, charts, tables.

A kind of study is a value of `Page`. What is the same for all kinds (cells, intervals, marks, the
page) is made of it in `build.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import altair as alt

from phalanx.records.schema import Environment, Study
from phalanx.report.cells import Baseline, CellPanel, Quantity, Row, cell_rows, make_cells
from phalanx.report.content import HEIGHT_PIXELS, AnyChart, Column, Figure, KeyFigure, drawn_columns
from phalanx.report.marks import Mark
from phalanx.report.measures import RunMeasure
from phalanx.report.statistics import Interval

Rows = Sequence[Row]
Wanted = Callable[[Row], bool]


@dataclass(frozen=True, kw_only=True)
class StudyRows:
    """Records of a study as tidy rows."""

    study: Study
    folder: Path
    runs: Rows
    """A row per run of the study, whatever became of it: run, status, error and what is known."""
    rows: Rows
    """Rows that form cells, each with the panel that it is compared in."""
    environments: Sequence[Environment]
    measures: Sequence[RunMeasure] = ()
    """Runs of trainings."""
    notice: str = ""
    """Disturbance of the machine, where the runs are no trainings."""
    notes: Sequence[tuple[str, str]] = ()
    """Conditions beside those of every study: what they are about, and a sentence."""


@dataclass(frozen=True)
class Told:
    """A sentence that the records carry."""

    text: str
    _: KW_ONLY
    label: str = ""
    """Panel that it is about."""
    short: str = ""
    """Headline of it, without its interval; empty where it makes none."""
    verdict: str = ""
    interval: Interval | None = None
    figure: KeyFigure | None = None


class Claim(Protocol):
    """A question to the records, answered in sentences."""

    @property
    def note(self) -> str:
        """Rule by which the sentences are made."""

    def tell(self, view: View) -> Iterable[Told]:
        """Return what the records say; nothing where they have no data for it."""


@dataclass(frozen=True)
class Say:
    """A claim of a page's own."""

    telling: Callable[[View], Iterable[Told]]
    note: str = ""

    def tell(self, view: View) -> Iterable[Told]:
        return self.telling(view)


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A chart: the rows that it is drawn from, the mark that shows them, and its words."""

    name: str
    title: str
    caption: str
    mark: Mark | Sequence[Mark]
    source: str
    """Events and fields of the records."""
    frame: str = "cells"
    where: Wanted | None = None
    known: str = ""
    """Rows without a value in this column are left out."""
    split: str = ""
    """Column that a panel has a chart for each value of; rows without one are in all of them."""
    split_label: str = ""
    """Column that names such a chart, where it is not `split`."""
    order: Callable[[Row], Any] | None = None
    least: int = 1
    """Rows that a chart needs."""

    def figures(self, view: View) -> list[Figure]:
        """Return a figure for each panel, and each value of `split`."""
        drawn = []
        rows = [r for r in view.frame(self.frame) if not self.known or r[self.known] is not None]
        rows = [row for row in rows if self.where is None or self.where(row)]
        for label in view.labels(rows):
            own, number = [row for row in rows if row["panel"] == label], view.number(label, rows)
            values = dict.fromkeys(row[self.split] for row in own) if self.split else {"": None}
            for value in values:
                if self.split and value is None:
                    continue
                part = [r for r in own if not self.split or r[self.split] in (None, value)]
                name = f"{self.name}-{number}" + (f"-{word(str(value))}" if self.split else "")
                words = part[-1][self.split_label or self.split] if value else ""
                title = ": ".join(filter(None, (label, str(words))))
                if len(part) >= self.least:
                    drawn.append(self.figure(part, name, title))
        return drawn

    def figure(self, rows: Rows, name: str, label: str) -> Figure:
        """Return the chart of rows; it follows the width of the page."""
        rows = sorted(rows, key=self.order) if self.order else rows
        plain = [
            {n: v for n, v in row.items() if not n.startswith("_") and not isinstance(v, tuple)}
            for row in rows
        ]
        marks = self.mark if isinstance(self.mark, Sequence) else [self.mark]
        layers: list[AnyChart] = [layer for mark in marks for layer in mark.layers(plain)]
        drawn = alt.layer(*layers).properties(
            width="container",
            height=marks[0].height(plain) or HEIGHT_PIXELS,
            autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
            description=f"{self.title}. {self.caption}",
        )
        spec = drawn.to_dict()
        spec.pop("config", None)  # the page sets the theme of all charts
        runs = (run for row in rows for run in row.get("_runs", [row.get("run", "")]))
        return Figure(
            label=label,
            name=name,
            title=self.title,
            caption=self.caption,
            source=self.source,
            runs=tuple(dict.fromkeys(runs)),
            rows=tuple(drawn_columns(spec, plain)),
            spec=spec,
        )


@dataclass(frozen=True)
class ChartSection:
    """Charts under one heading, each with a panel a model."""

    title: str
    plots: Sequence[Plot]


@dataclass(frozen=True, kw_only=True)
class TableSpec:
    """A table of rows."""

    title: str
    columns: Sequence[Column[Row]] | Callable[[View], Sequence[Column[Row]]]
    note: str | Callable[[Rows], str] = ""
    frame: str = "cells"
    where: Wanted | None = None
    order: Callable[[Row], Any] | None = None
    each: bool = False
    """A table a panel, with its label for a title."""
    on_terminal: bool = False
    style: Callable[[Row, str], str] | None = None
    """Style of a cell on the terminal, by its row and column."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """A kind of study: what its page holds."""

    read: Callable[[Path], StudyRows]
    """Reader of the records."""
    cell: Sequence[str] = ("cell",)
    """Columns that tell cells of a panel apart."""
    baseline: Baseline | None = None
    quantities: Sequence[Quantity] = ()
    frames: Mapping[str, Callable[[View], Rows]] = field(default_factory=dict)
    """Rows of further things than cells, by name."""
    headline: Callable[[View], str] = lambda _: ""
    facts: Callable[[View], Sequence[str]] = lambda _: ()
    """Words of the line below the headline."""
    keys: Callable[[View], Sequence[KeyFigure]] = lambda _: ()
    claims: Sequence[Claim] = ()
    leading: Sequence[Plot] = ()
    """The first of these that can be drawn is on the first screen; all of them, with a title."""
    leading_title: str = ""
    sections: Sequence[ChartSection] = ()
    tables: Sequence[TableSpec] = ()
    parts: Sequence[Part] = ()
    """Further pages that this one ends with."""


@dataclass(frozen=True)
class Part:
    """A page that another one ends with, and its rows, where those of the other have some."""

    page: Page
    rows: Callable[[StudyRows], StudyRows | None]


@dataclass(frozen=True)
class View:
    """A page's value and the rows of a study: what charts, claims and tables are made of."""

    page: Page
    data: StudyRows

    @cached_property
    def panels(self) -> tuple[CellPanel, ...]:
        labels = dict.fromkeys(row["panel"] for row in self.data.rows)
        return tuple(
            CellPanel(
                label,
                make_cells([r for r in self.data.rows if r["panel"] == label], self.page.cell),
                self.page.baseline,
            )
            for label in labels
        )

    @property
    def by_panel(self) -> dict[str, list[Row]]:
        """Rows of the cells of each panel, by its label."""
        cells = self.frame("cells")
        return {p.label: [row for row in cells if row["panel"] == p.label] for p in self.panels}

    @cached_property
    def _frames(self) -> dict[str, Rows]:
        return {}

    def frame(self, name: str) -> Rows:
        """Return the rows of `cells`, `runs`, or of a frame of the page."""
        if name not in self._frames:
            self._frames[name] = self._rows(name)
        return self._frames[name]

    def _rows(self, name: str) -> Rows:
        if name == "runs":
            return self.data.runs
        if name != "cells":
            return self.page.frames[name](self)
        return self.measured(self.page.quantities)

    def measured(self, quantities: Sequence[Quantity]) -> Rows:
        """Return a row for each cell with other quantities than those of the page."""
        return [row for panel in self.panels for row in cell_rows(panel, quantities)]

    def labels(self, rows: Rows) -> list[str]:
        """Return the labels of panels in the order of the page, and of others that rows have."""
        return list(dict.fromkeys([*(p.label for p in self.panels), *(r["panel"] for r in rows)]))

    def number(self, label: str, rows: Rows) -> int:
        """Return the number of a panel, or of a label of rows that no panel has, from 1."""
        known = [panel.label for panel in self.panels]
        others = list(dict.fromkeys(r["panel"] for r in rows if r["panel"] not in known))
        return (known if label in known else others).index(label) + 1


def word(text: str) -> str:
    """Return a word for the name of an element or a file: those from records may hold anything."""
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-").lower()
