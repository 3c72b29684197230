"""What a rank does and when, kept in memory while it happens: the stuff of a trace."""

from __future__ import annotations

import time
from typing import NamedTuple

now_ns = time.perf_counter_ns
"""The clock of all spans."""


class Span(NamedTuple):
    """One piece of work."""

    name: str
    """As it is shown: "forward", "bucket 3"."""
    lane: str
    """Row of the rank in which it is shown: "compute", "network", "data"."""
    began_ns: int
    ended_ns: int
    detail: dict[str, str | int | float] | None = None


class Spans:
    """Those of one rank. Any thread may add."""

    def __init__(self) -> None:
        self._spans: list[Span] = []

    def add(
        self,
        name: str,
        lane: str,
        began_ns: int,
        ended_ns: int,
        detail: dict[str, str | int | float] | None = None,
    ) -> None:
        self._spans.append(Span(name, lane, began_ns, ended_ns, detail))

    def take(self) -> list[Span]:
        """All so far, which are forgotten here."""
        taken, self._spans = self._spans, []
        return taken
