"""Live line of a training run, and the lines of its finished epochs."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from phalanx.jobs.live_line import bar
from phalanx.records.divergence import loss_text, mean_loss
from phalanx.records.events import (
    Event,
    FinishedEvent,
    NoticeEvent,
    RebalancedEvent,
    RecoveredEvent,
    ReplacedEvent,
    SkippedEvent,
    SlowRankEvent,
    StartedEvent,
    StepEvent,
    SummaryEvent,
    certificate_text,
)
from phalanx.records.rank_texts import (
    rebalanced_text,
    recovered_text,
    replaced_text,
    slow_rank_text,
)
from phalanx.train.config import TrainConfig
from phalanx.train.metrics import accuracy_text, communication_words, epoch_line, samples_word


class TrainingProgress:
    """Progress of a training run, from the events of rank 0 so far, or of the first that is left.

    Within an epoch the loss is that of rank 0's part, and left out where rank 0 sees none (the
    first stage of a pipeline); the speed is that of whole steps, which the ranks make together. The
    lines of finished epochs are exact.
    """

    def __init__(self, config: TrainConfig) -> None:
        self._config = config
        self._global_batch_size = config.global_batch_size(config.num_ranks)
        self._started: StartedEvent | None = None
        self._accuracy: float | None = None
        self._steps: list[StepEvent] = []  # of the current epoch
        self._epochs: set[int] = set()  # summed up
        self._ranks = _RankChanges(config.num_ranks, config.spares)

    def take(self, events: Iterable[Event]) -> list[str]:
        """Count `events`; return the lines of epochs that ended, of notices and skipped steps."""
        lines = []
        for event in events:
            if isinstance(event, StartedEvent):
                self._started = event
            elif isinstance(event, StepEvent):
                if self._steps and self._steps[-1].epoch != event.epoch:
                    self._steps.clear()
                self._steps.append(event)
            elif isinstance(event, SkippedEvent):
                lines.append(f"skipped {event.reason}")
            elif isinstance(event, NoticeEvent):
                lines.append(event.text)
            elif isinstance(event, RecoveredEvent):
                lines += self._ranks.lose(event)
            elif isinstance(event, ReplacedEvent):
                lines.append(self._ranks.replace(event))
            elif isinstance(event, SlowRankEvent):
                lines.append(slow_rank_text(event))
            elif isinstance(event, RebalancedEvent):
                lines.append(rebalanced_text(event))
            elif isinstance(event, SummaryEvent) and event.epoch not in self._epochs:
                self._epochs.add(event.epoch)
                self._accuracy = event.validation_accuracy
                lines.append(epoch_line(event, self._config))
            elif isinstance(event, FinishedEvent):
                lines += self._ranks.tell_lost()
                if event.certificate is not None:
                    lines.append(certificate_text(event.certificate))
        return lines

    def text(self) -> str:
        if self._started is None:
            return "starting …"
        if not self._steps:
            return "first batch …"
        all_samples = self._started.train_samples
        samples = min(len(self._steps) * self._global_batch_size, all_samples)
        seconds = sum(step_s(step) for step in self._steps)
        communication_s = sum(step.communication_s for step in self._steps)
        return (
            f"epoch {self._steps[-1].epoch + 1}/{self._config.epochs} {bar(samples / all_samples)}"
            f"{self._loss(self._started)}{accuracy_text(self._accuracy, self._config)}"
            f"  {samples / seconds:,.0f} {samples_word(self._config)}/s"
            f"{communication_words(self._config, communication_s / seconds)}"
        )

    def _loss(self, started: StartedEvent) -> str:
        targets = sum(step.samples for step in self._steps) * started.targets_per_sample
        if not targets:
            return ""
        return f"  loss {loss_text(mean_loss(sum(s.loss_sum for s in self._steps), targets))}"


class _RankChanges:
    """Lines on ranks that die, each of which waits for the spare that takes the place."""

    def __init__(self, ranks: int, spares: int) -> None:
        self._computing = set(range(ranks))
        self._waiting = set(range(ranks, ranks + spares))
        self._vacated: list[int] = []
        self._recovery_s = 0.0

    def lose(self, event: RecoveredEvent) -> list[str]:
        """Return the lines on a loss, but for ranks whose places spares are about to take."""
        lines = []
        if spares := sorted(self._waiting.intersection(event.lost)):
            self._waiting.difference_update(spares)
            lost = msgspec.structs.replace(event, lost=spares)
            lines.append(recovered_text(lost, len(self._computing), are_spares=True))
        self._vacated += self._computing.intersection(event.lost)
        self._computing.difference_update(event.lost)
        self._recovery_s += event.recovery_s
        return lines if self._waiting else [*self.tell_lost(), *lines]

    def replace(self, event: ReplacedEvent) -> str:
        """Return the line on spares that have taken places."""
        self._computing.update(event.spares)
        self._waiting.difference_update(event.spares)
        self._vacated, self._recovery_s = [], 0.0
        return replaced_text(event, len(self._computing))

    def tell_lost(self) -> list[str]:
        """Return the line on ranks whose places nobody takes."""
        lost, seconds = sorted(self._vacated), self._recovery_s
        self._vacated, self._recovery_s = [], 0.0
        if not lost:
            return []
        event = RecoveredEvent(at_s=0.0, step=0, lost=lost, recovery_s=seconds)
        return [recovered_text(event, len(self._computing))]


def step_s(step: StepEvent) -> float:
    """Duration of a step in seconds."""
    return step.data_s + step.forward_s + step.backward_s + step.communication_s + step.optimizer_s
