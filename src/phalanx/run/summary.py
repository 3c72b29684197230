"""Evaluations and summaries of epochs, for the records and whoever watches."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from phalanx.comm.recovery import Recovery
from phalanx.errors import UserError
from phalanx.parallel.strategy import Strategy
from phalanx.records.divergence import recorded_loss
from phalanx.records.events import (
    EvaluationEvent,
    Event,
    SummaryEvent,
    TrainingEvaluationEvent,
)
from phalanx.records.files import rank_file, read_events
from phalanx.records.totals import RankTotals, Validation, summarize
from phalanx.run.batch import inputs_of, targets_of
from phalanx.run.program_loss import LossOf
from phalanx.run.recording import RunRecorder, num_correct

Show = Callable[[SummaryEvent], None]


def scoring(loss: LossOf, *, counts_correct: bool) -> Callable[[nn.Module, Any], Mapping[str, Any]]:
    """Return a function for `run.evaluate` that returns sums over a batch: of its samples, of their
    losses and, where these are counted, of right predictions."""

    def score(model: nn.Module, batch: Any) -> dict[str, Any]:
        targets = targets_of(batch)
        outputs, number = model(inputs_of(batch)), len(targets)
        sums = {"samples": number, "loss": number * float(loss(outputs, targets))}
        if counts_correct and isinstance(outputs, Tensor):
            sums["correct"] = num_correct(outputs, targets)
        return sums

    return score


def validation_of(
    sums: Mapping[str, float], began: float, *, targets_per_sample: int
) -> Validation:
    """Return the result of an evaluation by `scoring`. began: by `time.perf_counter()`."""
    samples = round(sums["samples"])
    correct = round(sums["correct"]) if "correct" in sums else None
    return Validation(
        samples=samples,
        loss=recorded_loss(sums["loss"] / samples),
        accuracy=None if correct is None else correct / (samples * targets_per_sample),
        correct=correct,
        seconds=time.perf_counter() - began,
    )


class EpochSummaries:
    """Summaries of a run's epochs, which the first of the ranks that are left writes, each once.

    Every rank that knows one keeps it until all know that it is written: the first rank may die
    before.
    """

    def __init__(self, strategy: Strategy, recorder: RunRecorder, folder: Path | None) -> None:
        """folder: of the records of all ranks, as far as this node sees them."""
        self._strategy, self._group = strategy, strategy.group
        self._recorder, self._folder = recorder, folder
        self.known: dict[str, float] = {"trained_s": 0.0}
        """Numbers that all ranks know between two steps."""
        self._unsettled: tuple[list[Event], SummaryEvent, Show | None] | None = None
        self._group.follow(self._take_over)

    def add(
        self,
        epoch: int,
        validation: Validation | None,
        training: Validation | None,
        show: Show | None,
    ) -> None:
        """Write the summary of the epoch that has just ended, on rank 0. Collective.

        training: the same of training data. show: is given the summary, on the rank that writes it.
        """
        counts, group = self._recorder.counts, self._group

        def gather() -> list[list[float]] | None:
            self._recorder.sum_losses()
            return group.gather(list(self._totals()))

        rows = group.together(gather)
        if rows is not None:
            loss, samples = counts.summed_loss, counts.summed_samples
            summary = summarize(
                [RankTotals(*row) for row in rows],
                validation,
                epoch=epoch,
                samples=counts.trained_samples,
                train_loss=recorded_loss(loss / samples if samples else math.nan),
                trained_s=self.known["trained_s"],
                at_s=self._recorder.at_s(),
            )
            self.known["trained_s"] = summary.trained_s
            self._unsettled = self._results(epoch, validation, training), summary, show
        if group.rank == 0 and self._unsettled is not None:
            self._write(*self._unsettled)
        else:
            for event in self._results(epoch, validation, training, is_first=False):
                self._recorder.write(event)
        group.together(group.barrier)
        self._unsettled = None

    def _totals(self) -> RankTotals:
        """Return this rank's counts of the epoch."""
        counts, strategy = self._recorder.counts, self._strategy
        correct, samples = counts.correct, counts.samples
        if strategy.numbers is not None and correct is not None:  # ranks may have died
            first = strategy.rank == 0
            correct, samples = counts.summed_correct * first, counts.trained_samples * first
        return RankTotals(
            train_s=counts.train_s,
            communication_s=counts.communication_s,
            correct=math.nan if correct is None else correct,
            targets=samples * self._recorder.targets_per_sample,
            steps=counts.steps,
            damaged=counts.damaged,
            skipped=counts.skipped,
        )

    def _results(
        self,
        epoch: int,
        validation: Validation | None,
        training: Validation | None,
        *,
        is_first: bool = True,
    ) -> list[Event]:
        """Return the events of the evaluations. is_first: of the rank whose sums are those of all;
        the others add nothing."""
        events: list[Event] = []
        for kind, found in ((EvaluationEvent, validation), (TrainingEvaluationEvent, training)):
            if found is not None:
                targets = found.samples * self._recorder.targets_per_sample
                events.append(
                    kind(
                        at_s=self._recorder.at_s(),
                        epoch=epoch,
                        evaluation_s=found.seconds,
                        samples=found.samples if is_first else 0,
                        loss_sum=recorded_loss(found.loss * targets) if is_first else 0.0,
                        correct=found.correct if is_first or found.correct is None else 0,
                    )
                )
        return events

    def _take_over(self, recovery: Recovery) -> None:
        """Write what the ranks that were first before this one have not."""
        if self._unsettled is None or self._group.rank > 0 or self._group.is_waiting:
            return
        seen_by = {*recovery.lost, *self._group.lost, recovery.world.original_rank}
        epoch = self._unsettled[1].epoch
        if not any(self._is_written(rank, epoch) for rank in seen_by):
            self._write(*self._unsettled)

    def _is_written(self, rank: int, epoch: int) -> bool:
        """Return whether a rank's records have the summary of an epoch; a damaged file ends where
        it is."""
        if self._folder is None:
            return False
        with contextlib.suppress(OSError, UserError):
            for event in read_events(rank_file(self._folder, rank)):
                if isinstance(event, SummaryEvent) and event.epoch == epoch:
                    return True
        return False

    def _write(self, events: list[Event], summary: SummaryEvent, show: Show | None) -> None:
        for event in events:
            self._recorder.write(event)
        self._recorder.write(summary, at_once=True)
        if show is not None:
            show(summary)
