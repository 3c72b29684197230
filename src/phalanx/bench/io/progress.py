"""The progress line of the I/O benchmark."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from phalanx.records.files import IoTail, rank_file
from phalanx.records.io import IoProgressEvent

BAR_WIDTH = 20


class ProgressLine:
    """A live line on a terminal; elsewhere one line per 10 % of each phase."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._told: tuple[str, int] | None = None
        self._live = Live(Text("starting …"), console=console, transient=True, auto_refresh=False)

    def __enter__(self) -> ProgressLine:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, part: str, doing: str, done: float) -> None:
        """Show progress. part: phase of the work, in which `done` goes from 0 to 1."""
        text = line(doing, done, time.monotonic() - self._began)
        if self._console.is_terminal:
            self._live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)
        elif self._told != (step := (part, int(10 * done))):
            self._told = step
            self._console.print(text, markup=False)


def line(doing: str, done: float, elapsed_s: float) -> str:
    filled = round(done * BAR_WIDTH)
    bar = "█" * filled + "░" * (BAR_WIDTH - filled)
    return f"{bar} {done:4.0%}  {elapsed_s:3.0f} s  {doing}"


class RankProgress:
    """Reads progress from the growing records of rank 0."""

    def __init__(self, folder: Path, ranks: int) -> None:
        self._tail = IoTail(rank_file(folder, 0))
        self._ranks = ranks

    def update(self, shown: ProgressLine) -> bool:
        """Show new events; return whether there were any."""
        events = list(self._tail.read_new())
        steps = [event for event in events if isinstance(event, IoProgressEvent)]
        if steps:
            step, ranks = steps[-1], self._ranks
            on = "" if ranks == 1 else f"{ranks} ranks: "
            shown.show(f"ranks {ranks}", on + step.doing, step.done / step.total)
        return bool(events)
