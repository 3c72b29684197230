"""Live progress line of a run, from rank 0's records as they grow."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from phalanx.records.divergence import loss_text, mean_loss
from phalanx.records.files import EventTail, rank_file
from phalanx.records.schema import (
    AnyEvent,
    NoticeEvent,
    SkippedEvent,
    StartedEvent,
    StepEvent,
    SummaryEvent,
)
from phalanx.train.config import TrainConfig
from phalanx.train.metrics import accuracy_words, communication_words, epoch_line, samples_word

BAR_WIDTH = 20


class Progress:
    """A line that is redrawn on a terminal, and a line for every epoch that is done.

    label: what stands before the live line; with one, the lines of the epochs are left out.
    """

    def __init__(
        self, console: Console, folder: Path, config: TrainConfig, label: str | None
    ) -> None:
        self._tail = EventTail(rank_file(folder, 0))
        self._console = console
        self._label = label
        self._state = LiveState(config)
        self._live = Live(self._line(), console=console, transient=True, auto_refresh=False)

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def update(self) -> bool:
        """Show new events; return whether there were any."""
        events = list(self._tail.read_new())
        if self._label is None:
            for event in events:
                if isinstance(event, SkippedEvent):
                    self._console.print(f"skipped {event.reason}", markup=False)
                elif isinstance(event, NoticeEvent):
                    self._console.print(event.text, markup=False)
        for summary in self._state.take(events):
            if self._label is None:
                self._console.print(epoch_line(summary, self._state.config), markup=False)
        if self._console.is_terminal:
            self._live.update(self._line(), refresh=True)
        return bool(events)

    def _line(self) -> Text:
        text = f"{self._label}  {self._state.text()}" if self._label else self._state.text()
        return Text(text, no_wrap=True, overflow="ellipsis")


class LiveState:
    """State and text of the live line, from the events of rank 0 so far.

    Within an epoch the loss is that of rank 0's part, and left out where rank 0 sees none (the
    first stage of a pipeline); the speed is that of whole steps, which the ranks make together. The
    lines of finished epochs are exact.
    """

    def __init__(self, config: TrainConfig) -> None:
        assert config.ranks is not None, "complete() comes first"
        self.config = config
        self._global_batch_size = config.global_batch_size(config.ranks)
        self._started: StartedEvent | None = None
        self._accuracy: float | None = None
        self._steps: list[StepEvent] = []  # of the current epoch

    def take(self, events: Iterable[AnyEvent]) -> list[SummaryEvent]:
        """Count `events`; return the epochs that they end."""
        summaries = []
        for event in events:
            if isinstance(event, StartedEvent):
                self._started = event
            elif isinstance(event, StepEvent):
                if self._steps and self._steps[-1].epoch != event.epoch:
                    self._steps.clear()
                self._steps.append(event)
            elif isinstance(event, SummaryEvent):
                self._accuracy = event.validation_accuracy
                summaries.append(event)
        return summaries

    def text(self) -> str:
        if self._started is None:
            return "starting …"
        if not self._steps:
            return "first batch …"
        all_samples = self._started.train_samples
        samples = min(len(self._steps) * self._global_batch_size, all_samples)
        seconds = sum(step_s(step) for step in self._steps)
        communication_s = sum(step.communication_s for step in self._steps)
        done = samples / all_samples
        bar = "█" * round(done * BAR_WIDTH) + "░" * (BAR_WIDTH - round(done * BAR_WIDTH))
        return (
            f"epoch {self._steps[-1].epoch + 1}/{self.config.epochs} {bar} {done:4.0%}"
            f"{self._loss(self._started)}{self._last_accuracy()}"
            f"  {samples / seconds:,.0f} {samples_word(self.config)}/s"
            f"{communication_words(self.config, communication_s / seconds)}"
        )

    def _loss(self, started: StartedEvent) -> str:
        targets = sum(step.samples for step in self._steps) * started.targets_per_sample
        if not targets:
            return ""
        return f"  loss {loss_text(mean_loss(sum(s.loss_sum for s in self._steps), targets))}"

    def _last_accuracy(self) -> str:
        if self._accuracy is None:
            return ""
        return f"  {accuracy_words(self.config)} {self._accuracy:.2%}"


def step_s(step: StepEvent) -> float:
    """Duration of a step in seconds."""
    return step.data_s + step.forward_s + step.backward_s + step.communication_s + step.optimizer_s
