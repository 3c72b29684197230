"""The progress line of a benchmark, drawn from the growing records of rank 0."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from phalanx.records.collectives import ProgressEvent
from phalanx.records.files import BenchTail, rank_file
from phalanx.report.format import size

BAR_WIDTH = 20


class BenchProgress:
    """A live line on a terminal; elsewhere one line per 10 %."""

    def __init__(self, console: Console, folder: Path) -> None:
        self._console = console
        self._tail = BenchTail(rank_file(folder, 0))
        self._began = time.monotonic()
        self._told = -1
        self._live = Live(Text("starting …"), console=console, transient=True, auto_refresh=False)

    def __enter__(self) -> BenchProgress:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def update(self) -> bool:
        """Show new events; return whether there were any."""
        events = list(self._tail.read_new())
        steps = [event for event in events if isinstance(event, ProgressEvent)]
        if steps:
            self._show(steps[-1])
        return bool(events)

    def _show(self, step: ProgressEvent) -> None:
        elapsed_s = time.monotonic() - self._began
        if self._console.is_terminal:
            text = Text(progress_line(step, elapsed_s), no_wrap=True, overflow="ellipsis")
            self._live.update(text, refresh=True)
        elif (tenth := 10 * step.done // step.total) > self._told:
            self._told = tenth
            self._console.print(progress_line(step, elapsed_s), markup=False)


def progress_line(step: ProgressEvent, elapsed_s: float) -> str:
    """Format the progress bar and the current case."""
    done = step.done / step.total
    bar = "█" * round(done * BAR_WIDTH) + "░" * (BAR_WIDTH - round(done * BAR_WIDTH))
    what, _, number = step.doing.rpartition(" ")
    doing = f"{what} {size(int(number))}" if number.isdecimal() and int(number) else step.doing
    return f"{bar} {done:4.0%}  {elapsed_s:3.0f} s  {doing.removesuffix(' 0')}"
