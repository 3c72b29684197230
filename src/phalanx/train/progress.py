"""The live line of a run, drawn from the records of rank 0 while they grow."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from phalanx.records.files import EventTail, rank_file
from phalanx.records.schema import AnyEvent, Started, Step, Summary
from phalanx.train.metrics import epoch_line

BAR_WIDTH = 20


class Progress:
    """A line that is redrawn on a terminal; in a log, a line an epoch."""

    def __init__(self, console: Console, folder: Path, epochs: int, ranks: int) -> None:
        self._tail = EventTail(rank_file(folder, 0))
        self._console = console
        self._state = LiveState(epochs, ranks)
        self._live = Live(self._state.line(), console=console, transient=True, auto_refresh=False)

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
            self._console.print(epoch_line(summary, self._state.epochs), highlight=False)
        if self._console.is_terminal:
            self._live.update(self._state.line(), refresh=True)
        return bool(events)


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

    def line(self) -> Text:
        if self._started is None:
            return Text("starting …")
        if not self._steps:
            return Text("first batch …")
        samples = sum(step.samples for step in self._steps)
        loss = sum(step.loss_sum for step in self._steps) / max(1, samples)
        communication_s = sum(step.communication_s for step in self._steps)
        seconds = sum(step_s(step) for step in self._steps)
        done = min(1.0, samples * self.ranks / self._started.train_samples)
        bar = "█" * round(done * BAR_WIDTH) + "░" * (BAR_WIDTH - round(done * BAR_WIDTH))
        accuracy = "" if self._accuracy is None else f"  accuracy {self._accuracy:.2%}"
        return Text(
            f"epoch {self._steps[-1].epoch + 1}/{self.epochs} {bar} {done:4.0%}"
            f"  loss {loss:.4f}{accuracy}"
            f"  {samples * self.ranks / seconds:,.0f} images/s"
            f"  communication {communication_s / seconds:.1%}",
            no_wrap=True,
            overflow="ellipsis",
        )


def step_s(step: Step) -> float:
    """Duration of a step in seconds."""
    return step.data_s + step.forward_s + step.backward_s + step.communication_s + step.optimizer_s
