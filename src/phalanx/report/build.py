"""Content of a page, made of its value and the records: figures, claims and tables. Pure.

`content_of` makes the content of a page, `print_summary` what the terminal shows of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from phalanx.records.schema import Environment
from phalanx.report.cells import Row
from phalanx.report.claims import as_sentence
from phalanx.report.conditions import conditions, disturbance
from phalanx.report.content import (
    SHOWN_CLAIMS,
    Column,
    Content,
    Section,
    Table,
    chart_row,
    make_table,
)
from phalanx.report.content import Row as ChartRow
from phalanx.report.format import UNKNOWN, counted, joined
from phalanx.report.tables import environments
from phalanx.report.terminal import terminal_table
from phalanx.report.values import Page, Plot, StudyRows, TableSpec, View, word

WIDE_COLUMNS = 100


def page_content(page: Page, data: StudyRows) -> Content:
    """Return the content of a page."""
    views = views_of(page, data)
    view = views[0]
    done = sum(row["status"] == "completed" for row in data.runs)
    lead = [f"{done} of {counted(len(data.runs), 'run')} completed", *page.facts(view)]
    leading, drawn = _leading(view)
    return Content(
        title=data.study.study,
        kind=data.study.kind,
        started_at=data.study.started_at,
        command=data.study.command,
        headline=page.headline(view),
        lead=f"{', '.join(filter(None, [*lead, machine(data.environments)]))}.",
        notice=data.notice or disturbance(data.measures),
        key_figures=page.keys(view),
        leading=leading,
        claims=claims_of(views),
        notes=[claim.note for each in views for claim in each.page.claims if claim.note],
        conditions=conditions(data),
        sections=[s for each in views for s in _sections(each, drawn if each is view else ())],
        tables=[t for each in views for spec in each.page.tables for t in tables(each, spec)],
        environment=environments(data.environments),
        num_panels=len(view.panels),
    )


def views_of(page: Page, data: StudyRows) -> list[View]:
    """Return the view of a page, and of each of its parts that has records."""
    views = [View(page, data)]
    for part in page.parts:
        if (own := part.rows(data)) is not None:
            views.append(View(part.page, own))
    return views


def machine(known: Sequence[Environment]) -> str:
    """Return processors and cores, in a few words."""
    kinds = [f"{counted(e.cores, 'core')} of {e.processor}" for e in known]
    return joined(list(dict.fromkeys(kinds)))


def claims_of(views: Iterable[View]) -> list[tuple[str, str]]:
    """Return every claim with its label, in the order of the page."""
    return [
        (told.label, as_sentence(told))
        for view in views
        for claim in view.page.claims
        for told in claim.tell(view)
        if told.text
    ]


def _leading(view: View) -> tuple[ChartRow | None, Sequence[Plot]]:
    """Return the charts of the first screen, and those that are drawn there."""
    page = view.page
    if page.leading_title:
        drawn = [panel for plot in page.leading for panel in plot.panels(view)]
        return chart_row(drawn, title=page.leading_title), page.leading
    for plot in page.leading:
        if row := chart_row(plot.panels(view)):
            return row, [plot]
    return None, ()


def _sections(view: View, drawn: Sequence[Plot]) -> Iterator[Section]:
    """Yield the sections that have a chart."""
    for section in view.page.sections:
        found = [chart_row(plot.panels(view)) for plot in section.plots if plot not in drawn]
        if rows := tuple(filter(None, found)):
            yield Section(name=word(section.title), title=section.title, rows=rows)


def tables(view: View, spec: TableSpec) -> list[Table]:
    """Return the table of a frame's rows, or one for each panel."""
    rows = _rows_of(view, spec)
    groups = {spec.title: rows}
    if spec.each:
        groups = {label: [r for r in rows if r["panel"] == label] for label in view.labels(rows)}
        groups = {f"{spec.title} {label}".strip(): own for label, own in groups.items()}
    return [
        make_table(
            title,
            spec.note(own) if callable(spec.note) else spec.note,
            [column for column in _shown(view, spec, own) if column.only != "terminal"],
            own,
        )
        for title, own in groups.items()
        if own and title
    ]


def _rows_of(view: View, spec: TableSpec) -> Sequence[Row]:
    """Return the rows of a table, panel after panel, in the order that it asks for."""
    rows = [row for row in view.frame(spec.frame) if spec.where is None or spec.where(row)]
    if spec.order is None:
        return rows
    order, labels = spec.order, view.labels(rows)
    return sorted(rows, key=lambda row: (labels.index(row["panel"]), order(row)))


def _shown(view: View, spec: TableSpec, rows: Sequence[Row]) -> list[Column[Row]]:
    """Return the columns without those whose values would have to differ or be known."""
    least = {"varied": 2, "known": 1}
    return [
        column
        for column in (spec.columns(view) if callable(spec.columns) else spec.columns)
        if len({column.cell(row) for row in rows} - {UNKNOWN}) >= least.get(column.only, 0)
    ]


def print_summary(page: Page, data: StudyRows, console: Console) -> None:
    """Print the tables for the terminal, the headline, the first claims and the conditions."""
    views = views_of(page, data)
    for view in views:
        for spec in view.page.tables:
            if spec.on_terminal:
                _print_table(view, spec, console)
    console.print(Text(page.headline(views[0]), style="bold"))
    found = claims_of(views)
    for label, text in found[:SHOWN_CLAIMS]:
        console.print(f"  {label}: {text}" if label else f"  {text}", markup=False)
    if len(found) > SHOWN_CLAIMS:
        console.print(f"  {len(found) - SHOWN_CLAIMS} more in the report")
    if text := data.notice or disturbance(data.measures):
        console.print(f"  {text}", markup=False)
    for label, text in conditions(data):
        console.print(f"  {label}: {text}" if label else f"  {text}", markup=False)


def _print_table(view: View, spec: TableSpec, console: Console) -> None:
    rows = _rows_of(view, spec)
    columns = [column for column in _shown(view, spec, rows) if column.short is not None]
    if console.width < WIDE_COLUMNS:
        columns = [column for column in columns if column.only != "wide"]
    for label in view.labels(rows) if spec.each else [""]:
        own = [row for row in rows if not spec.each or row["panel"] == label]
        if not own:
            continue
        if label:
            console.print(Text(label, style="bold"))
        short = [replace(column, title=column.short or "") for column in columns]
        console.print(terminal_table(make_table("", "", short, own), style=_style_of(spec, own)))


def _style_of(spec: TableSpec, rows: Sequence[Row]) -> Callable[[int, str], str] | None:
    """Return the style of a cell by the number of its row and its column."""
    style = spec.style
    return None if style is None else lambda number, title: style(rows[number], title)
