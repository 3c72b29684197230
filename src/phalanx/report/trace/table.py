"""A trace in a few lines: where each rank's steps go, and whom it waits for. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from phalanx.records.schema import Step
from phalanx.report.overlap import Overlap, overlap_of
from phalanx.report.trace.read import RankTrace, Traces
from phalanx.report.trace.waits import waited_s, waits

WARM_UP = 3
"""Steps that are left out, where there are twice as many."""


@dataclass(frozen=True, kw_only=True)
class RankRow:
    """Seconds of a mean step of one rank."""

    rank: int
    num_steps: int
    data_s: float
    forward_s: float
    backward_s: float
    exposed_s: float
    optimizer_s: float
    overlap: Overlap | None
    waited_s: dict[int, float]
    """By the rank that was waited for, the most first."""

    @property
    def step_s(self) -> float:
        parts = (self.data_s, self.forward_s, self.backward_s, self.exposed_s, self.optimizer_s)
        return sum(parts)


def table(traces: Traces) -> list[RankRow]:
    """A row for each rank that makes steps."""
    found = waits(traces.ranks)
    made = []
    for rank, trace in traces.ranks.items():
        steps = counted_steps(trace.steps)
        if not steps:
            continue
        waited = waited_s(found, rank, _began_ns(trace, steps[0]))
        made.append(
            RankRow(
                rank=rank,
                num_steps=len(steps),
                data_s=fmean(step.data_s for step in steps),
                forward_s=fmean(step.forward_s for step in steps),
                backward_s=fmean(step.backward_s for step in steps),
                exposed_s=fmean(step.communication_s for step in steps),
                optimizer_s=fmean(step.optimizer_s for step in steps),
                overlap=overlap_of(steps),
                waited_s={late: took_s / len(steps) for late, took_s in waited.items()},
            )
        )
    return made


def counted_steps(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    return steps[WARM_UP:] if len(steps) >= 2 * WARM_UP else steps


def _began_ns(trace: RankTrace, step: Step) -> int:
    """When `step` began, by the earliest of its spans."""
    own = [s.began_ns for s in trace.spans if s.detail and s.detail.get("step") == step.step]
    return min(own, default=0)


def lines(rows: list[RankRow]) -> list[list[str]]:
    """Cells as they are shown, the heading first; milliseconds."""
    heading = ["rank", "step", "data", "forward", "backward", "exposed", "hidden", "ceiling",
               "optimizer", "waits (for)"]  # fmt: skip
    return [heading, *map(_line, rows)]


def _line(row: RankRow) -> list[str]:
    overlap = row.overlap
    times = [row.step_s, row.data_s, row.forward_s, row.backward_s, row.exposed_s]
    return [
        str(row.rank),
        *(f"{1e3 * time_s:.3f}" for time_s in times),
        f"{1e3 * overlap.hidden_s:.3f}" if overlap else "\N{EN DASH}",
        f"{1e3 * overlap.hideable_s:.3f}" if overlap else "\N{EN DASH}",
        f"{1e3 * row.optimizer_s:.3f}",
        _waits(row) or "\N{EN DASH}",
    ]


def _waits(row: RankRow) -> str:
    shown = list(row.waited_s.items())[:2]
    return ", ".join(f"{1e3 * took_s:.3f} ({late})" for late, took_s in shown)
