"""Timing of the actions of a pipeline."""

from __future__ import annotations

import time

from phalanx.parallel.pipeline.orders import Kind
from phalanx.parallel.step import TimedAction


class Recorder:
    """Recorder of a rank's timed actions in a step. Costs two readings of the clock an action."""

    def __init__(self, *, clock_offset_s: float = 0.0) -> None:
        """clock_offset_s: from this rank's clock to the one that all ranks share."""
        self.actions: list[TimedAction] = []
        self._offset_s = clock_offset_s
        self._step = 0

    def begin(self, step: int) -> None:
        """Begin `step`, and drop the actions of the one before."""
        self.actions, self._step = [], step

    def now(self) -> float:
        return time.perf_counter() + self._offset_s

    def add(self, kind: Kind, stage: int, micro_batch: int, began_s: float) -> None:
        """Record an action that ends now."""
        self.actions.append(TimedAction(self._step, stage, micro_batch, kind, began_s, self.now()))

    def seconds_of(self, *kinds: Kind) -> float:
        return sum(a.ended_s - a.began_s for a in self.actions if a.kind in kinds)
