"""Simulated timeline of a pipeline in which only computation takes time. Pure; no PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from phalanx.parallel.pipeline.layout import PipelineLayout
from phalanx.parallel.pipeline.orders import Action, Kind, orders_of

SIGNS: Mapping[Kind, str] = {
    "forward": "F",
    "backward": "B",
    "input gradient": "I",
    "weight gradient": "W",
}
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
    layout: PipelineLayout,
    lasts: Callable[[Action], float] = duration_in_ticks,
    *,
    transfer: float = 0.0,
) -> list[list[ScheduledAction]]:
    """Return each rank's actions with their times, each as early as order and dependencies allow.

    lasts: how long an action takes; transfer: how long an activation or its gradient takes from one
    rank to another.
    """
    waiting = [list(reversed(order)) for order in orders_of(layout)]
    spans: list[list[ScheduledAction]] = [[] for _ in waiting]
    ended: dict[Action, float] = {}
    while any(waiting):
        began_with = len(ended)
        for rank, order in enumerate(waiting):
            while order and (needed := _needed(order[-1], ended, layout)) is not None:
                action = order.pop()
                arrived = [
                    at + (transfer if layout.rank_of(other.stage) != rank else 0.0)
                    for other, at in needed
                ]
                began = max([spans[rank][-1].ended if spans[rank] else 0.0, *arrived])
                ended[action] = began + lasts(action)
                spans[rank].append(ScheduledAction(action, began, ended[action]))
        assert len(ended) > began_with, f"{layout}: every rank waits for another"
    return spans


def _needed(
    action: Action, ended: Mapping[Action, float], layout: PipelineLayout
) -> list[tuple[Action, float]] | None:
    """Return the dependencies of `action` with their end times; None: one has not ended yet."""
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
    return [(other, ended[other]) for other in needed]


def draw(layout: PipelineLayout, spans: Sequence[Sequence[ScheduledAction]]) -> str:
    """Draw a line a rank and a column a tick, as in the papers; a rank's second stage has a `'`.

    Actions that take longer than a tick stretch over several columns; a dot is an idle tick.
    """
    end = int(max(rank[-1].ended for rank in spans))
    rows = [["." for _ in range(end)] for _ in spans]
    for rank, of_rank in enumerate(spans):
        stages = layout.stages_of(rank)
        for action, began, ended in of_rank:
            mark = "'" * stages.index(action.stage)
            for tick in range(int(began), int(ended)):
                rows[rank][tick] = f"{SIGNS[action.kind]}{action.micro_batch}{mark}"
    width = max(len(cell) for row in rows for cell in row)
    return "\n".join(" ".join(cell.ljust(width) for cell in row).rstrip() for row in rows)
