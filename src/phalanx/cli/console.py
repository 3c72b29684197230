"""Console, progress bars and JSON output of the commands."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Self

from cyclopts import Group, Parameter
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn

Json = Annotated[
    bool,
    Parameter(
        name="--json",
        negative="",
        help="Print the results as JSON on standard output; all else goes to standard error.",
        group=Group("Output", sort_key=8),
    ),
]


def new_console(json_: bool = False) -> Console:
    """Return the console of a command; json_: standard output is for JSON."""
    return Console(highlight=False, soft_wrap=True, stderr=json_)


def print_json(content: object) -> None:
    json.dump(content, sys.stdout, indent=1)
    print()


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
        else:  # what was there before counts for no speed
            self._progress.add_task(name, completed=done, total=total)

    def note(self, line: str) -> None:
        """Print a line above the bars."""
        self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def interruption_noted(console: Console, text: str) -> Iterator[None]:
    """Print `text` when the block is interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        console.print(f"interrupted; {text}", markup=False)
        raise
