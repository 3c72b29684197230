"""Pipeline bubble: idle share of a step, in theory and as recorded. Pure; no PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from phalanx.parallel.pipeline.layout import PipelineLayout
from phalanx.parallel.pipeline.orders import Action
from phalanx.parallel.pipeline.timeline import duration_in_ticks, simulate


class RecordedAction(Protocol):
    """A recorded action: a `TimedAction` of a strategy, an `Action` of the records."""

    @property
    def began_s(self) -> float: ...
    @property
    def ended_s(self) -> float: ...


def ideal_bubble(
    layout: PipelineLayout, lasts: Callable[[Action], float] = duration_in_ticks
) -> float:
    """Return the idle share of the step, over all ranks, when moving activations takes no time.

    With stages that take equally long it is what `bubble_formula` says, where p divides the number
    of micro-batches m (and 2p ≤ m for zero-bubble). p ranks, v stages a rank.
    """
    spans = simulate(layout, lasts)
    busy = sum(span.ended - span.began for rank in spans for span in rank)
    step = max(rank[-1].ended for rank in spans)
    return 1 - busy / (layout.num_ranks * step)


def bubble_formula(layout: PipelineLayout) -> str:
    """Return the formula of the bubble, to be read."""
    match layout.schedule:
        case "gpipe" | "1f1b":
            return "(p−1) ÷ (m+p−1)"
        case "interleaved":
            return "(p−1) ÷ (v·m+p−1)"
        case "zero-bubble":
            return "(p−1) ÷ (3·v·m+p−1)"  # forward, input and weight gradient taking equally long


def measured_bubble(actions: Sequence[Sequence[RecordedAction]]) -> list[float]:
    """Return the idle share of each rank in one step of its pipeline.

    That is 1 − its work ÷ the time from the first beginning of an action to the last end, over all
    ranks of the pipeline.

    actions: by rank, those of one step; the ranks of one pipeline alone.
    """
    step = max(a.ended_s for rank in actions for a in rank) - min(
        a.began_s for rank in actions for a in rank
    )
    return [1 - sum(a.ended_s - a.began_s for a in rank) / step for rank in actions]
