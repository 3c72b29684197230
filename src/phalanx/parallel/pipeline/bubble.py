"""Pipeline bubble: idle share of a step, in theory. Pure; no PyTorch."""

from __future__ import annotations

from collections.abc import Callable

from phalanx.parallel.pipeline.layout import PipelineLayout
from phalanx.parallel.pipeline.orders import Action
from phalanx.parallel.pipeline.timeline import duration_in_ticks, simulate


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
