"""Printing of findings on the terminal, at the end of a study or a measurement."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from phalanx.report.topic import Topic


def print_findings(topics: Iterable[Topic], console: Console) -> None:
    """A title a topic, a line a sentence."""
    for topic in topics:
        console.print(Text(topic.title, style="bold"))
        for sentence in topic.sentences:
            label = f"{sentence.label}: " if sentence.label else ""
            console.print(f"  {label}{sentence.text}", markup=False)
