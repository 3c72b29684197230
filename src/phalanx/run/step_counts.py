"""Counts of a program's steps: losses over all ranks, and right predictions where they are asked
for."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from phalanx.parallel.bitwise import Bitwise
from phalanx.parallel.step import StepResult
from phalanx.parallel.strategy import Strategy
from phalanx.run.accuracy import num_correct
from phalanx.run.batch import MicroBatch
from phalanx.run.recording import RunRecorder


class StepCounts:
    """Counts of an epoch's steps, which the recorder keeps."""

    def __init__(self, strategy: Strategy, recorder: RunRecorder) -> None:
        self._strategy, self._recorder = strategy, recorder
        self._outputs: list[tuple[Tensor, Tensor]] = []  # of a step, of which right ones count

    def note(self, batch: MicroBatch, outputs: Any) -> None:
        """Note outputs of a micro-batch, whose right predictions count once its step is made."""
        strategy, counts = self._strategy, self._recorder.counts
        if counts.right is None or not (isinstance(outputs, Tensor) and batch.num_samples):
            return
        own = outputs.detach()[: len(batch.targets)]
        if isinstance(strategy, Bitwise) and strategy.numbers is not None:
            strategy.note_correct(num_correct(own, batch.targets))
        elif strategy.counts_samples:
            self._outputs.append((own, batch.targets))

    def end_step(self, batch: MicroBatch, result: StepResult) -> None:
        """Count a step. batch: its last micro-batch."""
        summed, counts = self._strategy.summed, self._recorder.counts
        outputs, self._outputs = self._outputs, []
        if result.is_skipped:
            return
        counts.trained_samples += batch.global_samples
        if summed is not None:
            counts.summed_loss += summed.loss / (summed.weight or 1) * batch.global_samples
            counts.summed_samples += batch.global_samples
            counts.summed_correct += round(summed.correct)
        if counts.right is not None:
            for own, targets in outputs:
                counts.right.add(own, targets)
