"""Console and JSON output of the commands."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from cyclopts import Group, Parameter
from rich.console import Console

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


@contextmanager
def interruption_noted(console: Console, text: str) -> Iterator[None]:
    """Print `text` when the block is interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        console.print(f"interrupted; {text}", markup=False)
        raise
