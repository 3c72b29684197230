"""The learning rate of every step: a pure function of it, so that a run that resumes with the same
options has the rates of one that was never broken off."""

from __future__ import annotations

import math
from dataclasses import dataclass

from phalanx.errors import UserError
from phalanx.records.schema import LearningRateSchedule
from phalanx.train.config import TrainConfig
from phalanx.train.options import WarmUp

CONSTANT_WARM_UP = 0.1
"""Part of the highest rate that a constant warm-up has."""

ROUNDING = 1e-6
"""Part of a step: a position nearer than this to a milestone has reached it."""


@dataclass(frozen=True, kw_only=True)
class LRSchedule:
    """Learning rate of the updates from `first_step` to `num_steps`.

    A warm-up of `warmup_steps`, then from `peak` on:

    constant:   `peak` throughout.
    step:       times `factor` from each of the `milestones` on, which are parts of these updates.
    cosine:     down to 0 along half a cosine. Source: Loshchilov & Hutter 2017, arXiv:1608.03983,
                without restarts.
    polynomial: down to 0 as (1 - t)^power. Source: of power 2 with LARS, You et al. 2017,
                arXiv:1708.03888.

    The warm-up is a tenth of `peak` (`constant`), or rises from nothing, along a line (`linear`) or
    half a cosine (`cosine`). Source: a constant and a gradual warm-up in Goyal et al. 2017,
    arXiv:1706.02677; theirs stay at, or start from, the peak divided by the number of workers.
    """

    kind: LearningRateSchedule
    peak: float
    num_steps: int
    first_step: int = 0
    """More than 0 if a resumed run restarted it."""
    warmup: WarmUp = "linear"
    warmup_steps: int = 0
    milestones: tuple[float, ...] = (0.5, 0.75)
    factor: float = 0.1
    power: float = 2.0

    def at(self, step: int) -> float:
        """Return the rate of update number `step` of the run, counted from 0."""
        step, num_steps = step - self.first_step, self.num_steps - self.first_step
        if step < self.warmup_steps:
            return self.peak * self._warmup_factor((step + 1) / (self.warmup_steps + 1))
        if self.kind == "step":
            # 0.55 of 100 steps is 55.00000000000001 in floating point, and means 55
            passed = sum(step >= part * num_steps - ROUNDING for part in self.milestones)
            return self.peak * self.factor**passed
        decaying = num_steps - self.warmup_steps
        done = min(1.0, (step - self.warmup_steps) / decaying) if decaying > 0 else 1.0
        return self.peak * self._decay_factor(done)

    def _warmup_factor(self, done: float) -> float:
        """Return the fraction of the peak when this fraction of the warm-up is done; in (0, 1)."""
        match self.warmup:
            case "constant":
                return CONSTANT_WARM_UP
            case "linear":
                return done
            case "cosine":
                return 0.5 * (1 - math.cos(math.pi * done))

    def _decay_factor(self, done: float) -> float:
        """Return the fraction of the peak when this fraction of the decay is done; in [0, 1]."""
        match self.kind:
            case "cosine":
                return 0.5 * (1 + math.cos(math.pi * done))
            case "polynomial":
                return float((1 - done) ** self.power)
            case _:
                return 1.0


def step_at(position: tuple[int, int], *, num_train: int, global_batch_size: int) -> int:
    """Return the number of the first step after `position`.

    position: epochs done, samples seen of the next.
    """
    epochs_done, samples_seen = position
    whole, left = (-(-n // global_batch_size) for n in (num_train, num_train - samples_seen))
    return (epochs_done + 1) * whole - left


def schedule_of(
    config: TrainConfig,
    *,
    global_batch_size: int,
    num_train: int,
    start: tuple[int, int] = (0, 0),
) -> LRSchedule:
    """num_train: samples of an epoch. start: position at which a resumed run restarted it."""
    sizes = {"num_train": num_train, "global_batch_size": global_batch_size}
    steps_per_epoch = step_at((1, 0), **sizes)
    return LRSchedule(
        kind=config.lr_schedule,
        peak=config.learning_rate(global_batch_size),
        num_steps=config.epochs * steps_per_epoch,
        first_step=step_at(start, **sizes),
        warmup=config.warmup,
        warmup_steps=round(config.warmup_epochs * steps_per_epoch),
        milestones=config.lr_milestones,
        factor=config.lr_factor,
        power=config.lr_power,
    )


def check_warm_up(config: TrainConfig) -> None:
    """Raise UserError when the warm-up leaves nothing of the run, or reaches into the decay."""
    if not config.warmup_epochs:
        return
    if config.warmup_epochs >= config.epochs:
        raise UserError(
            f"--warmup-epochs {config.warmup_epochs:g} is the full run of {config.epochs} epochs, "
            "so the learning rate would never reach its peak: use a shorter warm-up"
        )
    if config.lr_schedule == "step":
        first = config.lr_milestones[0] * config.epochs if config.lr_milestones else math.inf
        if config.warmup_epochs > first:
            raise UserError(
                f"--warmup-epochs {config.warmup_epochs:g} ends after the first of "
                f"--lr-milestones, {config.lr_milestones[0]:g} of {config.epochs} epochs = "
                f"{first:g}: use a shorter warm-up, or a later milestone"
            )
