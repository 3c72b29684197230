"""The live line of a job on a terminal, and the lines that it leaves behind."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

from phalanx.records.events import Event

BAR_WIDTH = 20


class ProgressView(Protocol):
    """State of a job, from the events of rank 0 so far."""

    def take(self, events: Iterable[Event]) -> list[str]:
        """Count `events`; return lines to print for good."""

    def text(self) -> str:
        """Return the live line."""


class LiveLine:
    """A line that is redrawn on a terminal; elsewhere nothing, or a line per 10 % of a phase.

    label: what stands before the live line; with one, no other lines are printed.
    """

    def __init__(self, console: Console, label: str | None = None) -> None:
        self._console, self._label = console, label
        self._began = time.monotonic()
        self._printed: tuple[str, int] | None = None
        first = self._line("starting …")
        self._live = Live(first, console=console, transient=True, auto_refresh=False)

    def __enter__(self) -> LiveLine:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, view: ProgressView, events: Iterable[Event]) -> None:
        """Take new events into `view`, print the lines that they complete and draw its text."""
        for line in view.take(events):
            if self._label is None:
                width = self._console.width if self._console.is_terminal else len(line)
                self._console.print(folded(line, width), markup=False)
        self.draw(view.text())

    def draw(self, text: str) -> None:
        """Draw the line anew, on a terminal."""
        if self._console.is_terminal:
            self._live.update(self._line(text), refresh=True)

    def show_phase(self, phase: str, doing: str, done: float) -> None:
        """Show that `done` (0 to 1) of a phase of the work is over, and what is done now."""
        text = f"{bar(done)}  {time.monotonic() - self._began:3.0f} s  {doing}"
        self.draw(text)
        if not self._console.is_terminal and self._printed != (step := (phase, int(10 * done))):
            self._printed = step
            self._console.print(text, markup=False)

    def _line(self, text: str) -> Text:
        before = f"{self._label}  " if self._label else ""
        return Text(before + text, no_wrap=True, overflow="ellipsis")


def folded(line: str, width: int) -> str:
    """Break a line that is wider than the terminal between its columns, which two spaces part; a
    terminal would break it within words, and paths within their names."""
    first, *columns = line.split("  ")
    lines = [first]
    for column in columns:
        longer = f"{lines[-1]}  {column}"
        if len(longer) > width and lines[-1].strip():
            lines.append(f"    {column}")
        else:
            lines[-1] = longer
    return "\n".join(lines)


def bar(done: float) -> str:
    """Draw a bar and the percentage."""
    filled = round(done * BAR_WIDTH)
    return "█" * filled + "░" * (BAR_WIDTH - filled) + f" {done:4.0%}"
