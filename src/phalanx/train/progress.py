"""The live line of a run, drawn from the records of rank 0 while they grow."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from phalanx.records.files import EventTail, rank_file
from phalanx.records.schema import AnyEvent, Started, Step, Summary
from phalanx.train.config import TrainConfig
from phalanx.train.metrics import epoch_line

BAR_WIDTH = 20


class Progress:
    """A line that is redrawn on a terminal, and a line for every epoch that is done.

    label: what stands before the live line; with one, the lines of the epochs are left out.
    """

    def __init__(
        self, console: Console, folder: Path, config: TrainConfig, label: str | None
    ) -> None:
        assert config.ranks is not None, "complete() comes first"
        self._tail = EventTail(rank_file(folder, 0))
        self._console = console
        self._label = label
        self._state = LiveState(config.epochs, config.ranks)
        self._live = Live(self._line(), console=console, transient=True, auto_refresh=False)

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def update(self) -> bool:
        """Show what is new; returns whether there was anything."""
        events = list(self._tail.read_new())
        for summary in self._state.take(events):
            if self._label is None:
                self._console.print(epoch_line(summary, self._state.epochs), markup=False)
        if self._console.is_terminal:
            self._live.update(self._line(), refresh=True)
        return bool(events)

    def _line(self) -> Text:
        text = f"{self._label}  {self._state.text()}" if self._label else self._state.text()
        return Text(text, no_wrap=True, overflow="ellipsis")


class LiveState:
    """What the line says, from the events of rank 0 so far.

    Within an epoch loss and speed are those of rank 0's part, scaled to all ranks; the lines of
    finished epochs are exact.
    """

    def __init__(self, epochs: int, ranks: int) -> None:
        self.epochs, self.ranks = epochs, ranks
        self._started: Started | None = None
        self._accuracy: float | None = None
        self._steps: list[Step] = []  # of the current epoch

    def take(self, events: Iterable[AnyEvent]) -> list[Summary]:
        """Count `events` in; returns the epochs that they end."""
        summaries = []
        for event in events:
            if isinstance(event, Started):
                self._started = event
            elif isinstance(event, Step):
                if self._steps and self._steps[-1].epoch != event.epoch:
                    self._steps.clear()
                self._steps.append(event)
            elif isinstance(event, Summary):
                self._accuracy = event.validation_accuracy
                summaries.append(event)
        return summaries

    def text(self) -> str:
        if self._started is None:
            return "starting …"
        if not self._steps:
            return "first batch …"
        samples = sum(step.samples for step in self._steps)
        loss = sum(step.loss_sum for step in self._steps) / max(1, samples)
        communication_s = sum(step.communication_s for step in self._steps)
        seconds = sum(step_s(step) for step in self._steps)
        done = min(1.0, samples * self.ranks / self._started.train_samples)
        bar = "█" * round(done * BAR_WIDTH) + "░" * (BAR_WIDTH - round(done * BAR_WIDTH))
        accuracy = "" if self._accuracy is None else f"  accuracy {self._accuracy:.2%}"
        return (
            f"epoch {self._steps[-1].epoch + 1}/{self.epochs} {bar} {done:4.0%}"
            f"  loss {loss:.4f}{accuracy}"
            f"  {samples * self.ranks / seconds:,.0f} images/s"
            f"  communication {communication_s / seconds:.1%}"
        )


def step_s(step: Step) -> float:
    """Duration of a step in seconds."""
    return step.data_s + step.forward_s + step.backward_s + step.communication_s + step.optimizer_s
