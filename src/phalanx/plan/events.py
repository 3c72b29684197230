"""Discrete events of a step: actions on lanes, each as early as its lane and its needs allow. Pure.

A lane does one action at a time, in the order given: the processor of a rank, or the one way out of
it. Of ranks that do the same one is enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class LaneAction(NamedTuple):
    """Work of one lane."""

    name: str
    lane: str
    seconds: float
    needs: tuple[int, ...] = ()
    """Numbers of earlier actions that must have ended."""
    later_s: float = 0.0
    """Seconds after its end at which others see that it has ended: of a message, the latency."""


class ActionSpan(NamedTuple):
    """An action with its times, in seconds since the step began."""

    action: LaneAction
    began_s: float
    ended_s: float


def run_actions(actions: Sequence[LaneAction]) -> list[ActionSpan]:
    """Return the span of every action, in the order given."""
    free: dict[str, float] = {}
    spans: list[ActionSpan] = []
    for action in actions:
        began = free.get(action.lane, 0.0)
        for number in action.needs:
            began = max(began, spans[number].ended_s + actions[number].later_s)
        ended = free[action.lane] = began + action.seconds
        spans.append(ActionSpan(action, began, ended))
    return spans


def length_s(spans: Sequence[ActionSpan]) -> float:
    """Return when the last action has ended."""
    return max((span.ended_s for span in spans), default=0.0)
