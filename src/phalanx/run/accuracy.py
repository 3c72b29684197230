"""Count of correct predictions of an epoch."""

from __future__ import annotations

import torch
from torch import Tensor

LARGE = 2**15
"""Logits of a step that are compared while they are in the cache; to store them would take memory
that has not been touched before, which costs more than comparing."""
MAX_LOGITS = 2**18
"""Most logits of small steps that are kept and compared together, which is faster than one by
one."""


class CorrectCounter:
    """Counter of correct predictions. An ignored target is never correct."""

    def __init__(self) -> None:
        self._total, self._waiting = 0, 0
        self._logits: list[Tensor] = []
        self._targets: list[Tensor] = []

    def add(self, logits: Tensor, targets: Tensor) -> None:
        """logits: (m, …, classes), of which the first n count; targets: (n, …)."""
        if logits.requires_grad:
            logits = logits.detach()
        if logits.shape[0] != targets.shape[0]:
            logits = logits[: targets.shape[0]]
        number = logits.numel()
        if number >= LARGE:
            self._total += num_correct(logits, targets)
            return
        self._logits.append(logits)
        self._targets.append(targets)
        self._waiting += number
        if self._waiting >= MAX_LOGITS:
            self._count()

    def total(self) -> int:
        self._count()
        return self._total

    def _count(self) -> None:
        if not self._logits:
            return
        self._total += num_correct(torch.cat(self._logits), torch.cat(self._targets))
        self._logits.clear()
        self._targets.clear()
        self._waiting = 0


def num_correct(logits: Tensor, targets: Tensor) -> int:
    """Return how many targets have the largest logit, of equal ones the first.

    logits: (n, …, classes); targets: (n, …).
    """
    # Not `argmax`: it takes twice as long.
    return int((logits.max(-1).indices == targets).sum())
