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

    With stages that take equally long, of v on each of p ranks, it is (p−1) ÷ (m+p−1) for gpipe
    and 1f1b, (p−1) ÷ (v·m+p−1) for interleaved, and (p−1) ÷ (3·v·m+p−1) for zero-bubble with
    halves of the backward pass as long as the forward pass, where p divides the number of
    micro-batches m (and 2p ≤ m for zero-bubble).
    """
    spans = simulate(layout, lasts)
    busy = sum(span.ended - span.began for rank in spans for span in rank)
    step = max(rank[-1].ended for rank in spans)
    return 1 - busy / (layout.num_ranks * step)
