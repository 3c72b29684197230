"""Simulated timeline of a pipeline in which only computation takes time, and its idle share, the
bubble. Pure; no PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from phalanx.parallel.pipeline.layout import PipelineLayout
from phalanx.parallel.pipeline.orders import Action, Kind, orders_of

UNITS: Mapping[Kind, int] = {
    "forward": 1,
    "backward": 2,
    "input gradient": 1,
    "weight gradient": 1,
}
"""Ticks: each matrix is multiplied once forward and twice backward."""


class ScheduledAction(NamedTuple):
    """An action with its time."""

    action: Action
    began: float
    ended: float


def duration_in_ticks(action: Action) -> float:
    return UNITS[action.kind]


def simulate(
    layout: PipelineLayout, lasts: Callable[[Action], float] = duration_in_ticks
) -> list[list[ScheduledAction]]:
    """Return each rank's actions with their times, each as early as order and dependencies allow.

    lasts: how long an action takes.
    """
    waiting = [list(reversed(order)) for order in orders_of(layout)]
    spans: list[list[ScheduledAction]] = [[] for _ in waiting]
    ended: dict[Action, float] = {}
    while any(waiting):
        began_with = len(ended)
        for rank, order in enumerate(waiting):
            while order and (ready := _end_of_needed(order[-1], ended, layout)) is not None:
                action = order.pop()
                began = max(spans[rank][-1].ended if spans[rank] else 0.0, ready)
                ended[action] = began + lasts(action)
                spans[rank].append(ScheduledAction(action, began, ended[action]))
        assert len(ended) > began_with, f"{layout}: every rank waits for another"
    return spans


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


def needed_actions(action: Action, layout: PipelineLayout) -> list[Action]:
    """Return the actions whose end `action` waits for."""
    kind, stage, micro_batch = action
    match kind:
        case "forward":
            return [Action("forward", stage - 1, micro_batch)] if stage else []
        case "weight gradient":
            return [Action("input gradient", stage, micro_batch)]
        case _:
            needed = [Action("forward", stage, micro_batch)]
            if stage < layout.num_stages - 1:
                needed.append(Action(kind, stage + 1, micro_batch))
            return needed


def _end_of_needed(
    action: Action, ended: Mapping[Action, float], layout: PipelineLayout
) -> float | None:
    """Return when the dependencies of `action` have ended; None: one has not yet."""
    needed = needed_actions(action, layout)
    if any(other not in ended for other in needed):
        return None
    return max((ended[other] for other in needed), default=0.0)
