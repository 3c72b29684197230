"""A trace in a few lines: where each rank's steps go, and whom it waits for. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from phalanx.records.events import StepEvent
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
        since_ns, until_ns = _ends(trace, {step.step for step in steps})
        waited = waited_s(found, rank, since_ns, until_ns)
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


def counted_steps(steps: tuple[StepEvent, ...]) -> tuple[StepEvent, ...]:
    return steps[WARM_UP:] if len(steps) >= 2 * WARM_UP else steps


def _ends(trace: RankTrace, steps: set[int]) -> tuple[int, int]:
    """Return the begin of the first and the end of the last of `steps`, by their spans."""
    own = [span for span in trace.spans if span.detail and span.detail.get("step") in steps]
    began = min((span.began_ns for span in own), default=0)
    return began, max((span.ended_ns for span in own), default=0)


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
        *map(_ms, times),
        _ms(overlap.hidden_s) if overlap else "\N{EN DASH}",
        _ms(overlap.hideable_s) if overlap else "\N{EN DASH}",
        _ms(row.optimizer_s),
        _waits(row) or "\N{EN DASH}",
    ]


def _waits(row: RankRow) -> str:
    """Return the total of the waits, and the rank that caused most."""
    most = next(iter(row.waited_s), None)
    return "" if most is None else f"{_ms(sum(row.waited_s.values()))} ({most})"


def _ms(time_s: float) -> str:
    """Three digits that say something, and no more than five characters below ten seconds."""
    time_ms = 1e3 * time_s
    return f"{time_ms:.{3 if time_ms < 1 else 2 if time_ms < 10 else 1 if time_ms < 100 else 0}f}"
