"""How many predictions of an epoch were right."""

from __future__ import annotations

import torch
from torch import Tensor

MOST_LOGITS = 2**22
"""Held before they are looked at all together, which is faster than after every step."""


class Hits:
    """Counts right predictions, many steps at a time. Of a target that is ignored none is right."""

    def __init__(self) -> None:
        self._total, self._waiting = 0, 0
        self._logits: list[Tensor] = []
        self._targets: list[Tensor] = []

    def add(self, logits: Tensor, targets: Tensor) -> None:
        """logits: (n, …, classes); targets: (n, …)."""
        self._logits.append(logits)
        self._targets.append(targets)
        self._waiting += logits.numel()
        if self._waiting >= MOST_LOGITS:
            self._count()

    def total(self) -> int:
        self._count()
        return self._total

    def _count(self) -> None:
        if not self._logits:
            return
        targets = torch.cat(self._targets)
        self._total += int((torch.cat(self._logits).argmax(-1) == targets).sum())
        self._logits.clear()
        self._targets.clear()
        self._waiting = 0
