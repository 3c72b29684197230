"""Schedulers of the learning rate that a program gives to its run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from phalanx.errors import UserError


def schedulers_of(scheduler: object, optimizers: Mapping[str, Optimizer]) -> list[LRScheduler]:
    """Return the schedulers, each of which the run steps after every update.

    Raises: UserError for what is none, wants a metric, or is of another optimizer.
    """
    given: list[Any] = list(scheduler) if isinstance(scheduler, (list, tuple)) else [scheduler]
    for each in given:
        kind = type(each).__name__
        if isinstance(each, ReduceLROnPlateau):
            raise UserError(
                f"scheduler is {kind}, whose step takes a metric: leave it out, and call "
                "scheduler.step(run.evaluate(…)) yourself, on every rank, after an epoch"
            )
        if not isinstance(each, LRScheduler):
            raise UserError(
                f"scheduler is of type {kind}: give one of torch.optim.lr_scheduler, or a list of "
                "them"
            )
        if all(each.optimizer is not own for own in optimizers.values()):
            raise UserError(
                f"scheduler {kind} is of another optimizer than phalanx.start was given: make it "
                "of this one"
            )
    return given
