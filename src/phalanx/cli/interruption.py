"""The line that a command prints when it is interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console


@contextmanager
def interruption_noted(console: Console, text: str) -> Iterator[None]:
    """Print `text` when the block is interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        console.print(f"interrupted; {text}", markup=False)
        raise
