"""The learning rate of a run: a program's schedulers, and its optimizer's rate where a strategy has
an optimizer of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from phalanx.errors import UserError
from phalanx.parallel.optimizer import JointOptimizer, rule_of
from phalanx.parallel.strategy import Strategy


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


class FollowedRate:
    """Learning rate of a program's optimizer, which the strategy's own follows where it has one."""

    def __init__(self, strategy: Strategy, optimizer: Optimizer) -> None:
        self._strategy, self._optimizer = strategy, optimizer
        self._rule = rule_of(optimizer)

    def follow(self) -> None:
        """Take the rate of now. Raises: UserError when a scheduler has changed anything else."""
        given, own = self._optimizer, self._strategy.optimizer
        if own is given or isinstance(own, JointOptimizer):
            return
        rate, rule = given.param_groups[0]["lr"], rule_of(given)
        if self._rule is None or rule != replace(self._rule, learning_rate=float(rate)):
            raise UserError(
                f"{type(self._strategy).__name__} follows the learning rate of the optimizer "
                'alone, and its other options have changed: take strategy="mpi"'
            )
        own.param_groups[0]["lr"] = rate
        given._opt_called = True  # type: ignore[attr-defined]  # else schedulers warn: too late
