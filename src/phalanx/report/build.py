"""Content of a page, made of its value and the records: figures, claims and tables. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from operator import itemgetter
from typing import Any

from rich.console import Console
from rich.text import Text

from phalanx.report.cells import Row
from phalanx.report.claims import as_sentence
from phalanx.report.conditions import conditions, disturbance
from phalanx.report.content import (
    ChartRow,
    Column,
    Figure,
    KeyFigure,
    Section,
    Table,
    chart_row,
    environments,
    make_table,
)
from phalanx.report.format import UNKNOWN, counted, joined
from phalanx.report.terminal import terminal_table
from phalanx.report.values import Page, Plot, StudyRows, TableSpec, View, word

WIDE_COLUMNS = 100
SHOWN_CLAIMS = 6


class Content:
    """Content of the page's template and of the summary on the terminal."""

    shown_claims = SHOWN_CLAIMS

    def __init__(self, page: Page, data: StudyRows) -> None:
        self.page, self.data = page, data
        self.title, self.kind = data.study.study, data.study.kind
        self.command, self.started_at = data.study.command, data.study.started_at
        self.views = [View(page, data)]
        """The view of the page, and of each of its parts that has records."""
        for part in page.parts:
            if (own := part.rows(data)) is not None:
                self.views.append(View(part.page, own))
        self.num_panels = len(self.views[0].panels)

    @cached_property
    def headline(self) -> str:
        return self.page.headline(self.views[0])

    @property
    def lead(self) -> str:
        runs, known = self.data.runs, self.data.environments
        done = sum(row["status"] == "completed" for row in runs)
        machines = dict.fromkeys(f"{counted(e.cores, 'core')} of {e.processor}" for e in known)
        facts = [
            f"{done} of {counted(len(runs), 'run')} completed",
            *self.page.facts(self.views[0]),
        ]
        return f"{', '.join(filter(None, [*facts, joined(list(machines))]))}."

    @property
    def notice(self) -> str:
        """Disturbance of the machine."""
        return self.data.notice or disturbance(self.data.measures)

    @cached_property
    def key_figures(self) -> Sequence[KeyFigure]:
        return self.page.keys(self.views[0])

    @cached_property
    def claims(self) -> list[tuple[str, str]]:
        """Label and sentence; a page shows SHOWN_CLAIMS of them at first."""
        return [
            (told.label, as_sentence(told))
            for view in self.views
            for claim in view.page.claims
            for told in claim.tell(view)
            if told.text
        ]

    @property
    def notes(self) -> list[str]:
        """Rules by which the claims are made."""
        return [claim.note for view in self.views for claim in view.page.claims if claim.note]

    @cached_property
    def conditions(self) -> list[tuple[str, str]]:
        return conditions(self.data)

    @cached_property
    def _leading(self) -> tuple[ChartRow | None, Sequence[Plot]]:
        """The charts of the first screen, and the plots that are drawn there."""
        page, view = self.page, self.views[0]
        if page.leading_title:
            drawn = [figure for plot in page.leading for figure in plot.figures(view)]
            return chart_row(drawn, title=page.leading_title), page.leading
        for plot in page.leading:
            if row := chart_row(plot.figures(view)):
                return row, [plot]
        return None, ()

    @property
    def leading(self) -> ChartRow | None:
        return self._leading[0]

    @cached_property
    def sections(self) -> list[Section]:
        """The sections that have a chart."""
        made = []
        for view in self.views:
            drawn = self._leading[1] if view is self.views[0] else ()
            for section in view.page.sections:
                found = [
                    chart_row(plot.figures(view)) for plot in section.plots if plot not in drawn
                ]
                if rows := list(filter(None, found)):
                    made.append(Section(name=word(section.title), title=section.title, rows=rows))
        return made

    @property
    def figures(self) -> list[Figure]:
        """All charts, from the top."""
        rows = [row for part in self.sections for row in part.rows]
        return [figure for row in [self.leading, *rows] if row for figure in row.figures]

    @property
    def tables(self) -> list[Table]:
        return [t for view in self.views for spec in view.page.tables for t in tables(view, spec)]

    @property
    def environment(self) -> Table:
        return environments(self.data.environments)

    def as_json(self) -> dict[str, Any]:
        """Return the runs, the rows of cells and the sentences, unrounded, for other programs."""
        frames = {"runs": self.data.runs, "rows": self.views[0].frame("cells")}
        return {
            "name": self.title,
            "kind": self.kind,
            "command": self.command,
            **{name: list(map(_plain, rows)) for name, rows in frames.items()},
            "findings": self.claims,
            "conditions": self.conditions,
        }

    def print_summary(self, console: Console) -> None:
        """Print the tables for the terminal, the headline, the first claims and the conditions."""
        for view in self.views:
            for spec in view.page.tables:
                if spec.on_terminal:
                    _print_table(view, spec, console)
        console.print(Text(self.headline, style="bold"))
        more, notice = self.claims[SHOWN_CLAIMS:], self.notice
        left_out = [("", f"{len(more)} more in the report")] if more else []
        notices = [("", notice)] if notice else []
        for label, text in [*self.claims[:SHOWN_CLAIMS], *left_out, *notices, *self.conditions]:
            console.print(f"  {label}: {text}" if label else f"  {text}", markup=False)


def _plain(row: Row) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not name.startswith("_")}


def tables(view: View, spec: TableSpec) -> Iterator[Table]:
    """Yield the table of a frame's rows, or one for each panel."""
    for label, rows in filter(itemgetter(1), _groups(view, spec)):
        columns = [column for column in _shown(view, spec, rows) if column.only != "terminal"]
        note = spec.note(rows) if callable(spec.note) else spec.note
        if title := f"{spec.title} {label}".strip():
            yield make_table(title, note, columns, rows)


def _groups(view: View, spec: TableSpec) -> list[tuple[str, Sequence[Row]]]:
    """Return the rows of a table, or of one for each panel with its label, panel after panel, in
    the order that it asks for."""
    rows = [row for row in view.frame(spec.frame) if spec.where is None or spec.where(row)]
    if spec.order is not None:
        order, labels = spec.order, view.labels(rows)
        rows = sorted(rows, key=lambda row: (labels.index(row["panel"]), order(row)))
    if not spec.each:
        return [("", rows)] if rows else []
    return [(name, [row for row in rows if row["panel"] == name]) for name in view.labels(rows)]


def _shown(view: View, spec: TableSpec, rows: Sequence[Row]) -> list[Column[Row]]:
    """Return the columns without those whose values would have to differ or be known."""
    least = {"varied": 2, "known": 1}
    return [
        column
        for column in (spec.columns(view) if callable(spec.columns) else spec.columns)
        if len({column.cell(row) for row in rows} - {UNKNOWN}) >= least.get(column.only, 0)
    ]


def _print_table(view: View, spec: TableSpec, console: Console) -> None:
    groups = _groups(view, spec)
    columns = _shown(view, spec, [row for _, rows in groups for row in rows])
    is_wide = console.width >= WIDE_COLUMNS
    short = [
        replace(column, title=column.short)
        for column in columns
        if column.short is not None and (is_wide or column.only != "wide")
    ]
    for label, rows in filter(itemgetter(1), groups):
        if label:
            console.print(Text(label, style="bold"))
        table = make_table("", "", short, rows)
        console.print(terminal_table(table, style=_style_of(spec, rows)))


def _style_of(spec: TableSpec, rows: Sequence[Row]) -> Callable[[int, str], str] | None:
    """Return the style of a cell by the number of its row and its column."""
    style = spec.style
    return None if style is None else lambda number, title: style(rows[number], title)
