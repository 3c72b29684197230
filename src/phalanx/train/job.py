"""A run of `phalanx train` as a program on ranks that Phalanx starts, and its live line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from phalanx.jobs.launch_program import Launch
from phalanx.jobs.live_line import LiveLine, bar
from phalanx.records.divergence import loss_text, mean_loss
from phalanx.records.events import Event, StartedEvent, StepEvent, SummaryEvent
from phalanx.train.config import TrainConfig
from phalanx.train.run import (
    accuracy_text,
    begin_run,
    communication_words,
    epoch_line,
    samples_word,
)

RANK_PROGRAM = (sys.executable, "-m", "phalanx.train")


def launch_of(
    config: TrainConfig,
    line: LiveLine,
    *,
    command: Sequence[str],
    study: str = "train",
    check: Callable[[], None] = lambda: None,
    program: Sequence[str] = RANK_PROGRAM,
) -> Launch:
    """Return the launch of a training; `config` is complete.

    line: shows its progress, and what its first rank prints. check: as `Launch` has it.
    Raises: UserError where there is no MPI.
    """
    ranks, progress = config.rank_request(), TrainingProgress(config)
    mpi = ranks.mpi

    def show(events: list[Event]) -> None:
        for ended in progress.take(events):
            line.print(ended)
        line.draw(progress.text())

    def begin(folder: Path, launch: Launch) -> None:
        started = replace(config, ranks=launch.ranks.ranks, threads=launch.ranks.threads)
        begin_run(folder, started, study=study, command=command, mpi=mpi)

    return Launch(
        words=program,
        ranks=ranks,
        output=line,
        show=show,
        patience_s=config.patience,
        silent_s=2 * config.timeout_s,
        check=check,
        grace_s=config.grace_s if config.checkpoint_dir else None,
        begin=begin,
    )


class TrainingProgress:
    """Progress of a training run, from the events of rank 0 so far, or of the first that is left.

    Within an epoch the loss is that of rank 0's part, and left out where rank 0 sees none (the
    first stage of a pipeline); the speed is that of whole steps, which the ranks make together.
    """

    def __init__(self, config: TrainConfig) -> None:
        self._config = config
        self._global_batch_size = config.global_batch_size()
        self._started: StartedEvent | None = None
        self._accuracy: float | None = None
        self._steps: list[StepEvent] = []  # steps of the current epoch
        self._epochs: set[int] = set()  # summed up

    def take(self, events: Iterable[Event]) -> list[str]:
        """Count `events`; return the lines of epochs that ended. The rank that has written one may
        have died before the others knew: it is there twice."""
        lines = []
        for event in events:
            if isinstance(event, StartedEvent):
                self._started = event
            elif isinstance(event, StepEvent):
                if self._steps and self._steps[-1].epoch != event.epoch:
                    self._steps.clear()
                self._steps.append(event)
            elif isinstance(event, SummaryEvent) and event.epoch not in self._epochs:
                self._epochs.add(event.epoch)
                self._accuracy = event.validation_accuracy
                lines.append(epoch_line(event, self._config))
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


def step_s(step: StepEvent) -> float:
    """Duration of a step in seconds."""
    return step.data_s + step.forward_s + step.backward_s + step.communication_s + step.optimizer_s
