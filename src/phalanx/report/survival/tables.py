"""The tables of a survival study. Pure."""

from __future__ import annotations

from statistics import fmean
from typing import NamedTuple

from phalanx.report.content import Column, Table, make_table, words
from phalanx.report.format import duration, fixed, one_decimal
from phalanx.report.survival.study_data import DisturbedRun, SurvivalCell, SurvivalStudyData
from phalanx.report.survival.timeline import FaultMeasure


def _mean(cell: SurvivalCell, name: str) -> float | None:
    times = cell.times(name)
    return fmean(times) if times else None


def _sum(cell: SurvivalCell, name: str) -> int:
    return sum(getattr(run.timeline, name) for run in cell.runs)


COLUMNS: tuple[Column[SurvivalCell], ...] = (
    words("way", lambda cell: cell.label, short="way"),
    Column("runs", lambda cell: len(cell.runs), short="runs"),
    Column("faults", lambda cell: len(cell.faults), short="faults"),
    Column("effective time", lambda cell: cell.share, one_decimal, short="effective"),
    Column("wall clock (s)", lambda c: fmean(r.timeline.wall_s for r in c.runs), fixed, short="s"),
    Column("to notice", lambda cell: _mean(cell, "notice_s"), duration, short="notice"),
    Column("to continue", lambda cell: _mean(cell, "continue_s"), duration, short="continue"),
    Column("lost a fault", lambda cell: _mean(cell, "lost_s"), duration),
    Column("steps made again", lambda cell: _sum(cell, "steps_again")),
    Column("restarts", lambda cell: _sum(cell, "num_starts") - len(cell.runs)),
)


def ways(data: SurvivalStudyData) -> Table:
    """Return a table of the ways to go on."""
    return make_table(
        "Ways to go on",
        "Means over runs and faults. To notice: until the last survivor knew; to continue: until "
        "the end of the first step that counts after the recovery.",
        COLUMNS,
        data.cells,
    )


class FaultRow(NamedTuple):
    """A fault of a run."""

    run: DisturbedRun
    fault: FaultMeasure


FAULT_COLUMNS: tuple[Column[FaultRow], ...] = (
    words("run", lambda row: row.run.run.name),
    words("fault", lambda row: row.fault.kind),
    Column("rank", lambda row: row.fault.rank),
    Column("at (s)", lambda row: row.fault.at_s, fixed),
    Column("updates before it", lambda row: row.fault.step),
    Column("to notice", lambda row: row.fault.notice_s, duration),
    Column("new world", lambda row: row.fault.recovery_s, duration),
    Column("to continue", lambda row: row.fault.continue_s, duration),
    Column("lost", lambda row: row.fault.lost_s, duration),
)


def faults(data: SurvivalStudyData) -> Table:
    """Return a table of every fault."""
    return make_table(
        "Faults",
        "New world: from the notice to a world without the dead, of the slowest survivor. Lost: by "
        "how much the steps until then took longer than those before.",
        FAULT_COLUMNS,
        [FaultRow(run, fault) for run in data.runs for fault in run.timeline.faults],
    )


RUN_COLUMNS: tuple[Column[DisturbedRun], ...] = (
    words("run", lambda run: run.run.name),
    words("SHA-256", lambda run: ", ".join(sha[:16] for sha in run.sha256) or None),
    Column("steps", lambda run: len(run.timeline.steps)),
    Column("faults", lambda run: len(run.timeline.faults)),
    Column("effective time", lambda run: run.timeline.effective_share, one_decimal),
    Column("load when it began", lambda run: run.load_average, "{:.1f}".format),
)


def bits(data: SurvivalStudyData) -> Table:
    """Return a table of the runs and their bits."""
    return make_table(
        "Bits of every run",
        "Beginning of the SHA-256 in its certificate, the same on every rank that came to the end.",
        RUN_COLUMNS,
        [run for run in data.runs if run.timeline.steps],
    )
