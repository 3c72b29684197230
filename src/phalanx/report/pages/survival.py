"""The page of a survival study: what faults cost, and whether the bits are the same."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from phalanx.report import survival_rows as rows_of
from phalanx.report.cells import Derived, Measure, baseline
from phalanx.report.content import Column, words
from phalanx.report.format import counted, duration, fixed, one_decimal
from phalanx.report.marks import Axis, Bars, Lines
from phalanx.report.survival_rows import FLOOR, UNDISTURBED
from phalanx.report.training import reader
from phalanx.report.training_tables import RUNS
from phalanx.report.values import ChartSection, Page, Plot, Say, TableSpec

SOURCE = "step, metrics, injected and recovered events of all ranks"
TOOLTIP = (
    *("words|fault", "run", "at_s|time (s)|,.2f", "updates|updates before it|,d"),
    *("noticed", "continued|next step ended", "loss||.5f"),
)
TIME = Axis(field="at_s", title="wall-clock time (s)", zero=True)


def _curves(name: str, title: str, caption: str, x: Axis, y: Axis) -> Plot:
    """A line a run, and a cross on it for each fault."""
    how: dict[str, Any] = {"x": x, "y": y, "series": "way", "tooltip": TOOLTIP}
    steps = Lines(where="datum.kind === 'step'", detail="run", marked=False, **how)
    faults = Lines(where="datum.kind === 'fault'", joined=False, cross=True, picks=False, **how)
    marks = (steps, faults)
    return Plot(name=name, title=title, caption=caption, source=SOURCE, frame="curves", mark=marks)


LOSS = Axis(field="loss", title="training loss", scale="log")
LOSS_TIME_PLOT = _curves(
    "loss-by-time",
    "Loss against wall-clock time",
    "Every cross is a fault. Runs of one seed make the same updates: their curves are the same to "
    "the last bit, stretched in time.",
    TIME,
    LOSS,
)
LOSS_UPDATES_PLOT = _curves(
    "loss-by-updates",
    "Loss against updates",
    "The same curves over the updates: they lie on each other.",
    Axis(field="updates", title="updates", zero=True),
    LOSS,
)
STEPS_PLOT = _curves(
    "steps",
    "Time of a step",
    "From the end of a step to that of the next. When ranks have died the others compute their "
    "part.",
    TIME,
    Axis(field="step_ms", title="step (ms)", scale="log"),
)
SHARE_PLOT = Plot(
    name="effective-time",
    title="Effective training time",
    caption="Share of the wall-clock time that went into steps that count; mean over the seeds, "
    "with its interval.",
    source=SOURCE,
    where=lambda row: bool(row["way"] != UNDISTURBED),
    known="share",
    mark=Bars(
        by="way",
        x=Axis(field="share", title="effective time", form="%", zero=True),
        colour="--mpi",
        words="words",
        tooltip=("way", "words|effective time"),
    ),
)
SURVIVAL = Page(
    read=reader(
        rows_of.of_run,
        counts=lambda row: row["status"] == "completed",
        panel="set",
        tells_left_out=True,
    ),
    cell=("way",),
    baseline=baseline(way=UNDISTURBED),
    quantities=(
        *(rows_of.SHARE, rows_of.WALL, rows_of.NOTICE, rows_of.CONTINUE),
        Measure(column="lost_s", how=fmean),
        *(Measure(column=name, how=sum) for name in ("num_faults", "again", "restarts")),
        Derived("runs", lambda row: len(row["_runs"])),
        Derived("words", rows_of.share_words),
    ),
    frames={"curves": rows_of.curve_rows, "faults": rows_of.fault_rows},
    headline=rows_of.headline,
    facts=lambda view: [counted(rows_of.num_faults(view), "fault")],
    keys=rows_of.keys,
    claims=(
        Say(
            rows_of.same_bits,
            note="Bits: SHA-256 of parameters, buffers and the optimizer's state at the end, of "
            "every rank, held to the undisturbed run of the same seed; and the loss of every step.",
        ),
        Say(
            rows_of.effective_time,
            note="Effective time: share of the time from the begin of the first step to the end of "
            "the last. Steps between a fault and the recovery from it count with the median of the "
            "undisturbed ones before them; a step that is made again counts once. The mean over "
            f"the runs is held to {one_decimal(FLOOR)}.",
        ),
        Say(
            rows_of.costs,
            note="What a fault costs: until the last survivor has noticed, and until the end of "
            "the first step after the recovery; means over the faults.",
        ),
    ),
    leading=(LOSS_TIME_PLOT,),
    sections=(
        ChartSection("Where the time goes", (SHARE_PLOT, STEPS_PLOT)),
        ChartSection("Loss against updates", (LOSS_UPDATES_PLOT,)),
    ),
    tables=(
        TableSpec(
            title="Ways to go on",
            note="Means over runs and faults. To notice: until the last survivor knew; to "
            "continue: until the end of the first step that counts after the recovery.",
            on_terminal=True,
            columns=(
                words("way", "way", short="way"),
                Column("runs", "runs", short="runs"),
                Column("faults", "num_faults", short="faults"),
                Column("effective time", "share", one_decimal, short="effective"),
                Column("wall clock (s)", "wall_s", fixed, short="s"),
                Column("to notice", "notice_s", duration, short="notice"),
                Column("to continue", "continue_s", duration, short="continue"),
                Column("lost a fault", "lost_s", duration),
                Column("steps made again", "again"),
                Column("restarts", "restarts"),
            ),
        ),
        TableSpec(
            title="Faults",
            note="New world: from the notice to a world without the dead, of the slowest survivor. "
            "Lost: by how much the steps until then took longer than those before.",
            frame="faults",
            columns=(
                *(words("run", "run"), words("fault", "kind"), Column("rank", "rank")),
                *(Column("at (s)", "at_s", fixed), Column("updates before it", "step")),
                Column("to notice", "notice_s", duration),
                Column("new world", "recovery_s", duration),
                Column("to continue", "continue_s", duration),
                Column("lost", "lost_s", duration),
            ),
        ),
        TableSpec(
            title="Bits of every run",
            note="Beginning of the SHA-256 in its certificate, the same on every rank that came to "
            "the end.",
            frame="runs",
            where=lambda row: row["steps"] is not None,
            columns=(
                words("run", "run"),
                words("SHA-256", lambda r: ", ".join(sha[:16] for sha in r["sha256"]) or None),
                *(Column("steps", "steps"), Column("faults", "num_faults")),
                Column("effective time", "share", one_decimal),
                Column("load when it began", "load", "{:.1f}".format),
            ),
        ),
        RUNS,
    ),
)
