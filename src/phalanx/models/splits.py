"""Messages that tensor parallelism of a model sends, by the model's children. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SplitMessages:
    """Messages over axis tp for one child of the model, in the passes of one micro-batch."""

    all_reduces: int = 0
    """Number of all-reduces of activations (samples, T, width)."""
    pairs: int = 0
    """Reduce-scatter and all-gather of these, where the sequence is split."""
    gathers: int = 0
    """All-gathers of these by themselves."""
    norms: int = 0
    """Norms whose gradients of weight and bias, (width,) each, are summed in a step."""


@dataclass(frozen=True, kw_only=True)
class SplitTraffic:
    """Messages of all children, by name; those that are not named send none."""

    width: int
    """Width of the activations that are summed."""
    messages: Mapping[str, SplitMessages]

    def of(self, child: str) -> SplitMessages:
        return self.messages.get(child, SplitMessages())
