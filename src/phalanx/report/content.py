"""Content of a page, independent of what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.records.schema import Environment
from phalanx.report.comparison import counted
from phalanx.report.format import joined
from phalanx.report.sections import Panel, Row, Section
from phalanx.report.tables import Table
from phalanx.report.topic import Topic


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


def machine(environments: Sequence[Environment]) -> str:
    """Processors and cores, in a few words."""
    kinds = [f"{counted(e.cores, 'core')} of {e.processor}" for e in environments]
    return joined(list(dict.fromkeys(kinds)))
