"""One process: the truth that every other strategy is held to."""

from __future__ import annotations

from phalanx.parallel.run_group import RunGroup
from phalanx.parallel.step import StepOptions
from phalanx.parallel.strategy import Strategy


class Sequential(Strategy):
    """Strategy of a single process, which has nothing to exchange."""

    recomputes = True

    def __init__(self, step_options: StepOptions | None = None) -> None:
        super().__init__(RunGroup(), step_options)
        self.coordinates = {}
