"""The learning rate of every step: a pure function of it, so that resuming changes nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass

from phalanx.records.schema import LearningRateSchedule


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """From step 0 to `num_steps`, the whole run's updates.

    constant: `peak` throughout.
    cosine: from `peak` down to 0 along half a cosine. Source: Loshchilov & Hutter 2017,
            arXiv:1608.03983, without restarts.
    """

    kind: LearningRateSchedule
    peak: float
    num_steps: int

    def at(self, step: int) -> float:
        """The rate of the update number `step`, counted from 0."""
        if self.kind == "constant":
            return self.peak
        return self.peak * 0.5 * (1 + math.cos(math.pi * min(1.0, step / self.num_steps)))
