"""Live line of a run from scratch, and a table that grows by a line an epoch."""

from __future__ import annotations

from collections.abc import Iterable

from phalanx.jobs.live_line import bar
from phalanx.records.divergence import loss_text
from phalanx.records.events import Event, StartedEvent, StepEvent, SummaryEvent
from phalanx.scratch.config import ScratchConfig

HEADER = "  epoch    loss   train  validation   images/s  waiting  seconds"


class ScratchProgress:
    """Progress from the events of rank 0; there, servers count their steps too."""

    def __init__(self, config: ScratchConfig) -> None:
        self._config = config
        self._steps, self._num_steps = 0, 0
        self._accuracy: float | None = None

    def take(self, events: Iterable[Event]) -> list[str]:
        """Count `events`; return new lines of the table."""
        lines = []
        for event in events:
            if isinstance(event, StartedEvent):
                steps_an_epoch = -(-event.train_samples // self._config.batch_size)
                self._num_steps = steps_an_epoch * self._config.epochs
                lines.append(HEADER)
            elif isinstance(event, StepEvent):
                self._steps = event.step + 1
            elif isinstance(event, SummaryEvent):
                self._accuracy = event.validation_accuracy
                lines.append(row(event, self._config.epochs))
        return lines

    def text(self) -> str:
        if not self._num_steps:
            return "starting …"
        accuracy = "" if self._accuracy is None else f"  accuracy {self._accuracy:.2%}"
        done = bar(self._steps / self._num_steps)
        return f"{done}  step {self._steps} of {self._num_steps}{accuracy}"


def row(summary: SummaryEvent, epochs: int) -> str:
    """An epoch as a line of the table under HEADER."""
    return (
        f"{f'{summary.epoch + 1}/{epochs}':>7} {loss_text(summary.train_loss):>7} "
        f"{summary.train_accuracy:7.2%} {summary.validation_accuracy:11.2%} "
        f"{summary.images_per_s:10,.0f} {summary.communication_share:8.1%} "
        f"{summary.epoch_s:8.2f}"
    )
