"""Plain values that a page is made of: figures in rows and sections, findings, tables. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from phalanx.report.charts.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Sentence:
    label: str  # of the workload; empty when it is about the whole study
    text: str


@dataclass(frozen=True, kw_only=True)
class Topic:
    """Sentences about one question, usually one a model, and the rule they were made by."""

    title: str
    rule: str
    sentences: tuple[Sentence, ...]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Cells are text; `numeric` tells which columns are set to the right."""

    title: str
    note: str
    columns: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One chart of a row: the same question, for one workload."""

    label: str
    figure: Figure


@dataclass(frozen=True, kw_only=True)
class Row:
    """One question, drawn for every workload."""

    title: str
    caption: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, kw_only=True)
class Section:
    name: str
    title: str
    rows: tuple[Row, ...]

    @property
    def single(self) -> bool:
        """Return whether every row has one chart, so that rows can stand beside one another."""
        return all(len(row.panels) == 1 for row in self.rows)


@dataclass(frozen=True, kw_only=True)
class KeyFigure:
    """A number for the first screen, with what it means."""

    label: str
    value: str
    meaning: str
    beside: str


@dataclass(frozen=True, kw_only=True)
class Content:
    """Content of the page's template, in its order."""

    title: str
    kind: str
    started_at: str  # ISO 8601, UTC
    headline: str
    lead: str
    key_figures: Sequence[KeyFigure]
    leading: Row | None
    topics: Sequence[Topic]
    sections: Sequence[Section]
    tables: Sequence[Table]
    command: str
    environment: Table
    num_panels: int

    @property
    def panels(self) -> list[Panel]:
        """All charts, from the top."""
        rows = [row for part in self.sections for row in part.rows]
        return [panel for row in [self.leading, *rows] if row for panel in row.panels]


Drawn = tuple[str, Figure | None]
"""A panel's label, and its chart where the records allow one."""


def chart_row(drawn: Iterable[Drawn], *, title: str | None = None) -> Row | None:
    """Return the charts that could be drawn as a row; None without any.

    title: of a row of different charts, whose captions are then joined; else the first chart's.
    """
    panels = tuple(Panel(label=label, figure=figure) for label, figure in drawn if figure)
    if not panels:
        return None
    first = panels[0].figure
    row = Row(title=first.title, caption=first.caption, panels=panels)
    if title is None:
        return row
    return replace(row, title=title, caption=" ".join(panel.figure.caption for panel in panels))


def sections(*planned: tuple[str, str, Iterable[Row | None]]) -> tuple[Section, ...]:
    """Return the sections (name, title, rows) that have a chart."""
    found = [
        Section(name=name, title=title, rows=tuple(row for row in rows if row))
        for name, title, rows in planned
    ]
    return tuple(section for section in found if section.rows)


def make_topic(title: str, rule: str, sentences: Iterable[tuple[str, str | None]]) -> Topic:
    """Return a topic of the (label, text) that have a text."""
    made = [Sentence(label=label, text=text) for label, text in sentences if text]
    return Topic(title=title, rule=rule, sentences=tuple(made))


def told(*topics: Topic) -> tuple[Topic, ...]:
    """Return the topics that have something to say."""
    return tuple(topic for topic in topics if topic.sentences)


def make_table(title: str, note: str, columns: str, rows: Iterable[tuple[str, ...]]) -> Table:
    """A table; `columns`: names with | between them; those that end in # hold numbers."""
    names = columns.split("|")
    return Table(
        title=title,
        note=note,
        columns=tuple(name.removesuffix("#") for name in names),
        numeric=tuple(name.endswith("#") for name in names),
        rows=tuple(rows),
    )


def with_rows(*tables: Table) -> list[Table]:
    """Return the tables that have rows."""
    return [table for table in tables if table.rows]
