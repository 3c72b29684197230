"""Simulated timeline of a pipeline in which only computation takes time. Pure; no PyTorch."""

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


def _end_of_needed(
    action: Action, ended: Mapping[Action, float], layout: PipelineLayout
) -> float | None:
    """Return when the dependencies of `action` have ended; None: one has not yet."""
    kind, stage, micro_batch = action
    needed: list[Action] = []
    match kind:
        case "forward" if stage > 0:
            needed = [Action("forward", stage - 1, micro_batch)]
        case "backward" | "input gradient":
            needed = [Action("forward", stage, micro_batch)]
            if stage < layout.num_stages - 1:
                needed.append(Action(kind, stage + 1, micro_batch))
        case "weight gradient":
            needed = [Action("input gradient", stage, micro_batch)]
    if any(other not in ended for other in needed):
        return None
    return max((ended[other] for other in needed), default=0.0)
