"""A run of `phalanx train` as a program on ranks of its own, which can be started again; its live
line, and the lines of its finished epochs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
from rich.console import Console

from phalanx.checkpoints.folder import check_unlocked, readable_folders
from phalanx.errors import UserError
from phalanx.jobs.binding import thread_variables
from phalanx.jobs.installation import MpiInstallation, find_mpi
from phalanx.jobs.launch_program import Launch
from phalanx.jobs.live_line import LiveLine, bar
from phalanx.jobs.record import closed_on_error
from phalanx.jobs.restarts import Attempt, Resumption
from phalanx.jobs.temporary import job_folder
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
from phalanx.records.schema import Run
from phalanx.train.config import TrainConfig
from phalanx.train.options import AUTOMATIC
from phalanx.train.run import (
    accuracy_text,
    begin_run,
    communication_words,
    complete,
    epoch_line,
    has_launcher,
    samples_word,
)

RANK_PROGRAM = (sys.executable, "-m", "phalanx.train")
ENDING_S = 10.0
"""Seconds for a rank that has given up, or was killed, to let go of its files."""


def run_job(
    config: TrainConfig,
    folder: Path,
    *,
    study: str,
    command: Sequence[str],
    console: Console,
    label: str | None = None,
    check: Callable[[], None] = lambda: None,
    program: Sequence[str] = RANK_PROGRAM,
) -> None:
    """Train with new ranks, with records in `folder`; `config` is complete.

    label: what stands before the live line; with one, finished epochs are not printed. check: is
    called again and again while the ranks run; what it raises ends them.
    Returns when every rank has written that it came to its end.
    Raises: UserError for what the user can mend, RunFailedError when a rank failed or hung,
            KeyboardInterrupt after all ranks were ended; the outcome is in `run.json` each time.
    """
    mpi, obstacle = _mpi_for(config)
    begin_run(folder, config, study=study, command=command, mpi=mpi)
    with closed_on_error(folder, Run):
        if obstacle is not None:
            raise obstacle
        with job_folder() as meeting, LiveLine(console, label) as line:
            progress = TrainingProgress(config)
            Launch(
                words=[*program, str(folder.absolute())],
                ranks=config.num_ranks,
                spares=config.spares,
                threads=config.threads,
                mpi=mpi,
                show=lambda events: line.show(progress, events),
                environment=_environment(config, None if mpi else meeting),
                survive=config.survive,
                patience_s=config.patience,
                silent_s=2 * config.timeout_s,
                check=check,
                grace_s=config.grace_s if config.checkpoint_dir else None,
                keeps_record=True,
            ).run(folder)


def _environment(config: TrainConfig, meeting: Path | None) -> dict[str, str]:
    """Return variables for the ranks. meeting: folder of those without MPI, to find each other."""
    threads = thread_variables(config.threads, os.environ)
    if meeting is not None:
        return {**threads, "PHALANX_RENDEZVOUS": str(meeting / "rendezvous")}
    return threads


def _mpi_for(config: TrainConfig) -> tuple[MpiInstallation | None, UserError | None]:
    """Return the MPI that the run needs, or why there is none."""
    if not has_launcher(config):
        return None, None
    try:
        return find_mpi(os.environ), None
    except UserError as error:
        return None, error


@dataclass(kw_only=True)
class TrainingJob:
    """A training on ranks that `phalanx train` starts."""

    asked: TrainConfig
    """Configuration that the user gave."""
    config: TrainConfig
    """Complete."""
    command: Sequence[str]
    console: Console
    check: Callable[[], None] = lambda: None
    """Called again and again while they run; what it raises ends them."""

    def start(self, attempt: Attempt) -> None:
        """Train to the end; raises as `run_job`."""
        run_job(
            self.config,
            attempt.folder,
            study="train",
            command=self.command,
            console=self.console,
            check=self.check,
        )

    def prepare(self, attempt: Attempt, former: Attempt) -> Resumption:
        """Complete the configuration anew, on the nodes that are left.

        Raises: UserError where it does not fit them, or no checkpoint can be read.
        """
        saved, given = self.asked.checkpoint_dir, self.asked.resume
        if saved is not None:
            _wait_for(saved, self.asked.timeout_s + ENDING_S)
        resume = AUTOMATIC if saved is not None and readable_folders(saved) else given
        notices: list[str] = []
        self.config, _ = complete(
            replace(self.asked, ranks=attempt.ranks, resume=resume),
            None,
            notices,
            is_restart=True,
        )
        found = self.config.resume
        if found is None:
            why = "no checkpoint was written" if saved else "without --checkpoint-dir"
            notices = [f"from the beginning: {why}"]
        changed = ""
        if attempt.ranks != former.ranks:
            bits = "to the same bits" if self.config.bitwise else "sums differ by rounding"
            changed = f"{attempt.ranks} ranks in place of {former.ranks}, {bits}"
        return Resumption(None if found is None else str(found), "; ".join(notices), changed)


def _wait_for(folder: Path, within_s: float) -> None:
    """Wait until the ranks before have let go of their checkpoints: one that was cut off does when
    it gives up. Raises: UserError where they have not in time."""
    until = time.monotonic() + within_s
    while True:
        try:
            return check_unlocked(folder)
        except UserError:
            if time.monotonic() > until:
                raise
        time.sleep(0.05)


class TrainingProgress:
    """Progress of a training run, from the events of rank 0 so far, or of the first that is left.

    Within an epoch the loss is that of rank 0's part, and left out where rank 0 sees none (the
    first stage of a pipeline); the speed is that of whole steps, which the ranks make together. The
    lines of finished epochs are exact.
    """

    def __init__(self, config: TrainConfig) -> None:
        self._config = config
        self._global_batch_size = config.global_batch_size()
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
