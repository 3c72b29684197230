"""A trace on the terminal: a line a rank, and where the file is."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from phalanx.report.content import make_table
from phalanx.report.format import counted, percent
from phalanx.report.terminal import terminal_table
from phalanx.report.trace.chrome import clock_error
from phalanx.report.trace.read import Traces, is_traced
from phalanx.report.trace.table import COLUMNS, RankRow, table
from phalanx.report.trace.write import write_trace

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
    for rank, why in traces.missing.items():
        console.print(f"rank {rank} is not in the trace: {why}", markup=False)
    console.print(
        f"trace of {counted(len(traces.ranks), 'rank')}: {path}; open it in {VIEWERS}", markup=False
    )


def remarks(rows: list[RankRow], traces: Traces) -> list[str]:
    """Return notes on the meaning and the accuracy of the table's numbers."""
    steps = max(row.num_steps for row in rows)
    made = [
        f"milliseconds of a mean step, over {steps} steps; waits: in all, and for which rank most",
        f"clock error: {clock_error(traces.ranks)}",
    ]
    overlaps = [row.overlap for row in rows if row.overlap]
    hidden_s = sum(overlap.hidden_s for overlap in overlaps)
    could_s = sum(overlap.hideable_s for overlap in overlaps)
    whole_s = sum(overlap.communication_s for overlap in overlaps)
    if whole_s and could_s:
        made.append(
            f"{percent(hidden_s / whole_s, 0)} of the communication is hidden behind backward, of "
            f"at most {percent(could_s / whole_s, 0)} ({percent(min(1.0, hidden_s / could_s), 0)} "
            "of what can be): behind the last bucket nothing is left to be computed"
        )
    return made
