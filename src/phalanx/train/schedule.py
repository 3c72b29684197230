"""The learning rate of every step: a pure function of it, so that resuming changes nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass

from phalanx.errors import UserError
from phalanx.records.schema import LearningRateSchedule
from phalanx.train.config import TrainConfig
from phalanx.train.learning import WarmUp

CONSTANT_WARM_UP = 0.1
"""Part of the highest rate that a constant warm-up has."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """From step 0 to `num_steps`, the whole run's updates: a warm-up of `warmup_steps`, then from
    `peak` on:

    constant:   `peak` throughout.
    step:       times `factor` from each of the `milestones` on, which are parts of the whole run.
    cosine:     down to 0 along half a cosine. Source: Loshchilov & Hutter 2017, arXiv:1608.03983,
                without restarts.
    polynomial: down to 0 as (1 - t)^power. Source: of power 2 with LARS, You et al. 2017,
                arXiv:1708.03888.

    The warm-up is a tenth of `peak` (`constant`: Goyal et al. 2017, arXiv:1706.02677, with which
    `linear`, from nothing, is compared there), or rises along half a cosine (`cosine`).
    """

    kind: LearningRateSchedule
    peak: float
    num_steps: int
    warmup: WarmUp = "linear"
    warmup_steps: int = 0
    milestones: tuple[float, ...] = (0.5, 0.75)
    factor: float = 0.1
    power: float = 2.0

    def at(self, step: int) -> float:
        """The rate of the update number `step`, counted from 0."""
        if step < self.warmup_steps:
            return self.peak * self._risen((step + 1) / (self.warmup_steps + 1))
        if self.kind == "step":
            passed = sum(step >= part * self.num_steps for part in self.milestones)
            return self.peak * self.factor**passed
        decaying = self.num_steps - self.warmup_steps
        done = min(1.0, (step - self.warmup_steps) / decaying) if decaying > 0 else 1.0
        return self.peak * self._left(done)

    def _risen(self, done: float) -> float:
        """Part of the peak, when this part of the warm-up is done; in (0, 1)."""
        match self.warmup:
            case "constant":
                return CONSTANT_WARM_UP
            case "linear":
                return done
            case "cosine":
                return 0.5 * (1 - math.cos(math.pi * done))

    def _left(self, done: float) -> float:
        """Part of the peak, when this part of the decay is done; in [0, 1]."""
        match self.kind:
            case "cosine":
                return 0.5 * (1 + math.cos(math.pi * done))
            case "polynomial":
                return float((1 - done) ** self.power)
            case _:
                return 1.0


def schedule_of(config: TrainConfig, *, global_batch_size: int, steps_per_epoch: int) -> Schedule:
    """Of a whole run."""
    return Schedule(
        kind=config.lr_schedule,
        peak=config.learning_rate(global_batch_size),
        num_steps=config.epochs * steps_per_epoch,
        warmup=config.warmup,
        warmup_steps=round(config.warmup_epochs * steps_per_epoch),
        milestones=config.lr_milestones,
        factor=config.lr_factor,
        power=config.lr_power,
    )


def check_warm_up(config: TrainConfig) -> None:
    """Raises: UserError when the warm-up leaves nothing of the run, or reaches into the decay."""
    if not config.warmup_epochs:
        return
    if config.warmup_epochs >= config.epochs:
        raise UserError(
            f"--warmup-epochs {config.warmup_epochs:g} is the whole run of {config.epochs} "
            "epochs: the learning rate would never be at its highest; warm up for less"
        )
    if config.lr_schedule == "step":
        first = config.lr_milestones[0] * config.epochs if config.lr_milestones else math.inf
        if config.warmup_epochs > first:
            raise UserError(
                f"--warmup-epochs {config.warmup_epochs:g} goes on after the first of "
                f"--lr-milestones, {config.lr_milestones[0]:g} of {config.epochs} epochs = "
                f"{first:g}: warm up for less, or set it later"
            )
