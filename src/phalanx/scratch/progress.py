"""A live line while a run goes on, and a table that grows by a line an epoch."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from phalanx.records.divergence import loss_text
from phalanx.records.files import EventTail, rank_file
from phalanx.records.schema import StartedEvent, StepEvent, SummaryEvent
from phalanx.scratch.config import ScratchConfig

BAR_WIDTH = 20
HEADER = "  epoch    loss   train  validation   images/s  waiting  seconds"


class ScratchProgress:
    """Drawn from the records of rank 0 while they grow; there, servers count their steps too."""

    def __init__(
        self, console: Console, folder: Path, config: ScratchConfig, label: str | None
    ) -> None:
        """label: what stands before the live line; with one, the table is left out."""
        self._tail = EventTail(rank_file(folder, 0))
        self._console, self._config, self._label = console, config, label
        self._steps, self._num_steps = 0, 0
        self._accuracy: float | None = None
        self._live = Live(self._line(), console=console, transient=True, auto_refresh=False)

    def __enter__(self) -> ScratchProgress:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def update(self) -> bool:
        """Show what is new; returns whether there was anything."""
        is_new = False
        for event in self._tail.read_new():
            is_new = True
            if isinstance(event, StartedEvent):
                steps_an_epoch = -(-event.train_samples // self._config.batch_size)
                self._num_steps = steps_an_epoch * self._config.epochs
                self._print(HEADER)
            elif isinstance(event, StepEvent):
                self._steps = event.step + 1
            elif isinstance(event, SummaryEvent):
                self._accuracy = event.validation_accuracy
                self._print(row(event, self._config.epochs))
        if self._console.is_terminal:
            self._live.update(self._line(), refresh=True)
        return is_new

    def _print(self, line: str) -> None:
        if self._label is None:
            self._console.print(line, markup=False)

    def _line(self) -> Text:
        before = f"{self._label}  " if self._label else ""
        return Text(before + self._text(), no_wrap=True, overflow="ellipsis")

    def _text(self) -> str:
        if not self._num_steps:
            return "starting …"
        done = self._steps / self._num_steps
        bar = "█" * round(done * BAR_WIDTH) + "░" * (BAR_WIDTH - round(done * BAR_WIDTH))
        accuracy = "" if self._accuracy is None else f"  accuracy {self._accuracy:.2%}"
        return f"{bar} {done:4.0%}  step {self._steps} of {self._num_steps}{accuracy}"


def row(summary: SummaryEvent, epochs: int) -> str:
    """An epoch as a line of the table under HEADER."""
    return (
        f"{f'{summary.epoch + 1}/{epochs}':>7} {loss_text(summary.train_loss):>7} "
        f"{summary.train_accuracy:7.2%} {summary.validation_accuracy:11.2%} "
        f"{summary.images_per_s:10,.0f} {summary.communication_share:8.1%} "
        f"{summary.epoch_s:8.2f}"
    )
