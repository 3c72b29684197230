"""A recorded step of a pipeline, as rows. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from phalanx.records.events import ActionEvent
from phalanx.report.cells import Row
from phalanx.report.rank_measures import RankMeasure

Actions = dict[int, list[ActionEvent]]
"""Actions of one step, by rank of the run, in the order of the pipeline."""


def drawn_step(ranks: Iterable[RankMeasure]) -> list[Row]:
    """Return the actions of the shortest step that the first pipeline of a run has recorded, the
    least disturbed, a row each; the run's first step is left out as warm-up where there are
    others."""
    steps = recorded_steps(_first_pipeline(ranks))
    later = [actions for step, actions in steps.items() if step > 0] or list(steps.values())
    if not later:
        return []
    chosen = min(later, key=lambda actions: _end(actions) - _begin(actions))
    begin_s = _begin(chosen)
    return [
        {
            "rank": rank,
            "stage": action.stage,
            "micro_batch": action.micro_batch,
            "kind": action.kind,
            "begin_ms": (action.began_s - begin_s) * 1e3,
            "end_ms": (action.ended_s - begin_s) * 1e3,
        }
        for rank, actions in chosen.items()
        for action in sorted(actions, key=lambda action: action.began_s)
    ]


def recorded_steps(ranks: Sequence[RankMeasure]) -> dict[int, Actions]:
    """Return the steps that all these ranks have recorded."""
    steps: dict[int, Actions] = {}
    for rank in ranks:
        for action in rank.actions:
            steps.setdefault(action.step, {}).setdefault(rank.rank, []).append(action)
    return {step: steps[step] for step in sorted(steps) if len(steps[step]) == len(ranks)}


def bubble(step: Sequence[Row]) -> float | None:
    """Return the share of a step in which a rank was at no action, mean over the ranks."""
    if not step:
        return None
    busy_ms = sum(float(row["end_ms"] - row["begin_ms"]) for row in step)
    num_ranks, length_ms = (
        len({row["rank"] for row in step}),
        max(float(row["end_ms"]) for row in step),
    )
    return max(0.0, 1 - busy_ms / (num_ranks * length_ms))


def _begin(actions: Actions) -> float:
    return min(action.began_s for own in actions.values() for action in own)


def _end(actions: Actions) -> float:
    return max(action.ended_s for own in actions.values() for action in own)


def _first_pipeline(ranks: Iterable[RankMeasure]) -> list[RankMeasure]:
    """The ranks with actions that differ from the first of them in their place along the pipeline
    alone, in the order of these places."""

    def outside(rank: RankMeasure) -> dict[str, int]:
        return {axis: place for axis, place in rank.coordinates.items() if axis != "pp"}

    acting = [rank for rank in ranks if rank.actions]
    first = [rank for rank in acting if outside(rank) == outside(acting[0])]
    return sorted(first, key=lambda rank: (rank.coordinates.get("pp", rank.rank), rank.rank))
