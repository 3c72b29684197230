"""A trace on the terminal: a line a rank, where its steps go, whom it waits for, and the file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from phalanx.records.events import StepEvent
from phalanx.report.content import Column, make_table, terminal_table
from phalanx.report.format import counted, percent
from phalanx.report.rank_measures import PARTS, Overlap, overlap_of, parts_s, step_table
from phalanx.report.trace.chrome import PREDICTED, clock_error, waited_s, waits, write_trace
from phalanx.report.trace.read import RankTrace, Traces, is_traced

WARM_UP = 3
"""Steps that are left out, where there are twice as many."""


@dataclass(frozen=True, kw_only=True)
class RankRow:
    """Seconds of a mean step of one rank."""

    rank: int
    num_steps: int
    parts_s: Sequence[float]
    """Parts in the order of PARTS; the communication is the exposed one."""
    overlap: Overlap | None
    waited_s: dict[int, float]
    """Seconds by the rank that was waited for, the most first."""


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
                parts_s=list(parts_s(step_table(steps)).mean(axis=0)),
                overlap=overlap_of(step_table(steps)),
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


def _waits(row: RankRow) -> str:
    """Return the total of the waits, and the rank that caused most."""
    most = next(iter(row.waited_s), None)
    return "" if most is None else f"{_ms(sum(row.waited_s.values()))} ({most})"


def _ms(time_s: float) -> str:
    """Three digits that say something, and no more than five characters below ten seconds."""
    time_ms = 1e3 * time_s
    return f"{time_ms:.{3 if time_ms < 1 else 2 if time_ms < 10 else 1 if time_ms < 100 else 0}f}"


def _part(name: str) -> Callable[[RankRow], float]:
    return lambda row: row.parts_s[PARTS.index(name)]


COLUMNS = (
    Column[RankRow]("rank", lambda row: row.rank),
    Column[RankRow]("step", lambda row: sum(row.parts_s), _ms),
    *(Column(name, _part(name), _ms) for name in PARTS[:3]),
    Column[RankRow]("exposed", _part("communication"), _ms),
    Column[RankRow]("hidden", lambda row: row.overlap and row.overlap.hidden_s, _ms),
    Column[RankRow]("ceiling", lambda row: row.overlap and row.overlap.hideable_s, _ms),
    Column[RankRow]("optimizer", _part("optimizer"), _ms),
    Column[RankRow]("waits (for)", lambda row: _waits(row) or None),
)


VIEWERS = "https://ui.perfetto.dev or chrome://tracing"


def show_trace(folder: Path, console: Console) -> None:
    """Write `trace.json` and say what is in it; nothing where no rank has left anything.

    Raises: UserError when it cannot be written.
    """
    if not is_traced(folder):
        return
    path, traces = write_trace(folder)
    rows = table(traces)
    if rows:
        console.print(terminal_table(make_table("", "", COLUMNS, rows)))
        for line in remarks(rows, traces):
            console.print(line, markup=False)
    for missing, why in traces.gaps:
        are = "are" if " to " in missing else "is"
        console.print(f"{missing} {are} not in the trace: {why}", markup=False)
    console.print(
        f"trace of {counted(len(traces.ranks), 'rank')}: {path}; open it in {VIEWERS}", markup=False
    )


def remarks(rows: list[RankRow], traces: Traces) -> list[str]:
    """Return notes on the meaning and the accuracy of the table's numbers."""
    steps = max(row.num_steps for row in rows)
    made = [
        f"milliseconds of a mean step, over {steps} steps; waits: total, and for which rank most",
        PREDICTED if traces.is_planned else f"clock error: {clock_error(traces.ranks)}",
    ]
    overlaps = [row.overlap for row in rows if row.overlap]
    hidden_s = sum(overlap.hidden_s for overlap in overlaps)
    could_s = sum(overlap.hideable_s for overlap in overlaps)
    whole_s = sum(overlap.communication_s for overlap in overlaps)
    if whole_s and could_s:
        made.append(
            f"{percent(hidden_s / whole_s, 0)} of the communication is hidden behind backward, of "
            f"at most {percent(could_s / whole_s, 0)} ({percent(min(1.0, hidden_s / could_s), 0)} "
            "of what can be): no compute remains to hide the last bucket"
        )
    return made
