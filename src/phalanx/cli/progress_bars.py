"""Progress bars of commands on data; apart, because importing them takes hundredths of a second."""

from __future__ import annotations

from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn


class ProgressBars:
    """A bar for each of several things, on standard error; nothing is drawn before the first
    update."""

    def __init__(self, *columns: ProgressColumn) -> None:
        described = TextColumn("{task.description}"), BarColumn()
        self._progress = Progress(*described, *columns, console=Console(stderr=True))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress.tasks:  # else nothing was drawn, and stopping would end a line
            self._progress.stop()

    def progress(self, name: str, done: int, total: int | None) -> None:
        self._progress.start()
        known = {task.description: task.id for task in self._progress.tasks}
        if name in known:
            self._progress.update(known[name], completed=done, total=total)
        else:  # exclude samples that existed before from the speed
            self._progress.add_task(name, completed=done, total=total)

    def note(self, line: str) -> None:
        """Print a line above the bars."""
        self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)
