"""The live line of a job on a terminal, and the lines that it leaves behind."""

from __future__ import annotations

import time

from rich.console import Console
from rich.live import Live
from rich.text import Text

BAR_WIDTH = 20


class LiveLine:
    """A line that is redrawn on a terminal; elsewhere nothing, or a line per 10 % of a phase.

    label: what stands before the live line; with one, no other lines are printed.
    """

    def __init__(self, console: Console, label: str | None = None) -> None:
        self._console, self._label = console, label
        self._began = time.monotonic()
        self._printed: tuple[str, int] | None = None
        self._unfinished = b""
        first = self._line("starting …")
        self._live = Live(first, console=console, transient=True, auto_refresh=False)

    def __enter__(self) -> LiveLine:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        if self._unfinished:
            self.print(self._unfinished.decode(errors="replace"), end="")

    def write(self, output: bytes) -> None:
        """Print the lines of a rank's output that are whole."""
        *lines, self._unfinished = (self._unfinished + output).split(b"\n")
        for line in lines:
            self.print(line.decode(errors="replace"))

    def flush(self) -> None:
        """Do nothing: what is whole has been printed."""

    def print(self, line: str, *, end: str = "\n") -> None:
        """Print a line for good, above the live line."""
        if self._label is None:
            width = self._console.width if self._console.is_terminal else len(line)
            self._console.print(folded(line, width), markup=False, end=end)

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
