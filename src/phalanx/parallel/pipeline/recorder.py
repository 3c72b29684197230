"""Timing of the actions of a pipeline."""

from __future__ import annotations

import time

from phalanx.parallel.pipeline.orders import Kind
from phalanx.records.events import ActionEvent


class Recorder:
    """Recorder of a rank's timed actions in a step. Costs two readings of the clock an action."""

    def __init__(self, *, clock_offset_s: float = 0.0) -> None:
        """clock_offset_s: from this rank's clock to the one that all ranks share."""
        self.actions: list[ActionEvent] = []
        self._offset_s = clock_offset_s
        self._step = 0

    def begin(self, step: int) -> None:
        """Begin `step`, and drop the actions of the one before."""
        self.actions, self._step = [], step

    def now(self) -> float:
        return time.perf_counter() + self._offset_s

    def add(self, kind: Kind, stage: int, micro_batch: int, began_s: float) -> None:
        """Record an action that ends now; who writes the record says when that is."""
        action = ActionEvent(
            at_s=0.0,
            step=self._step,
            stage=stage,
            micro_batch=micro_batch,
            kind=kind,
            began_s=began_s,
            ended_s=self.now(),
        )
        self.actions.append(action)

    def seconds_of(self, *kinds: Kind) -> float:
        return sum(a.ended_s - a.began_s for a in self.actions if a.kind in kinds)
