"""The page of a survival study: what faults cost, and whether the bits are the same."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from phalanx.records.events import FinishedEvent
from phalanx.records.files import read_events
from phalanx.report.cells import Cell, Measure, Row, baseline, derived
from phalanx.report.claims import TIMES, agreement
from phalanx.report.content import Column, KeyFigure, words
from phalanx.report.format import counted, duration, ends, fixed, one_decimal, span
from phalanx.report.marks import Axis, Bars, Lines
from phalanx.report.measures import RunMeasure
from phalanx.report.statistics import Interval, mean_interval
from phalanx.report.survival_timeline import (
    Fault,
    RankEvents,
    TimedStep,
    Timeline,
    make_timeline,
)
from phalanx.report.training import reader
from phalanx.report.training_frames import RUNS
from phalanx.report.values import ChartSection, Page, Plot, Say, TableSpec, Told, View

UNDISTURBED = "undisturbed"
LABELS = {
    UNDISTURBED: "undisturbed",
    "in-place": "survived in place",
    "stops": "stopped ranks",
    "restarts": "restarted",
    "preemption": "preempted",
}
"""Ways to go on, in the order of the page."""
SIGNALS = {"kill": "SIGKILL", "stop": "SIGSTOP", "terminate": "SIGTERM"}
FLOOR = 0.97
"""Share of the time that is to go into steps that count."""
MOST_POINTS = 400
"""Points of one curve: a pixel or two each."""
SEEDS_DRAWN = 3
SHARE = Measure("share", how=fmean, interval="mean")
NOTICE = Measure("notice_s", how=fmean, interval="mean")
CONTINUE = Measure("continue_s", how=fmean, interval="mean")
WALL = Measure("wall_s", how=fmean, better="higher")


def of_run(run: RunMeasure) -> dict[str, Any]:
    """Return what faults did to a run, with its timeline."""
    starts = [] if run.status == "damaged" else _starts_of(run)
    timeline, (way, _, seed) = make_timeline(starts), run.name.rpartition("-s")
    certified = {
        event.certificate.sha256
        for events in (starts[-1].values() if starts else ())
        for event in events
        if isinstance(event, FinishedEvent) and event.certificate is not None
    }

    def of_faults(name: str) -> tuple[float, ...]:
        values = (getattr(fault, name) for fault in timeline.faults)
        return tuple(value for value in values if value is not None)

    return {
        "set": "all runs",
        "way": LABELS.get(way, way),
        "seed": int(seed),
        "share": timeline.effective_share,
        "wall_s": timeline.wall_s,
        "steps": len(timeline.steps) or None,
        "num_faults": len(timeline.faults),
        **{name: of_faults(name) for name in ("notice_s", "continue_s", "lost_s")},
        "again": timeline.steps_again,
        "restarts": timeline.num_starts - 1,
        "replaced_s": timeline.replaced_s,
        "sha256": tuple(sorted(certified)),
        "load": run.run.environment.load_average if run.run else None,
        "_timeline": timeline,
    }


def _starts_of(run: RunMeasure) -> list[RankEvents]:
    """Return the events of the first start and of every restart."""
    restarts = run.run.restarts if run.run else []
    starts: list[RankEvents] = []
    for each in (run.folder, *(run.folder / restart.folder for restart in restarts)):
        files = {int(path.stem.removeprefix("rank-")): path for path in each.glob("rank-*.jsonl")}
        starts.append({rank: list(read_events(files[rank])) for rank in sorted(files)})
    return starts


def disturbed(view: View) -> list[Cell]:
    """Return the ways with faults that have a completed run."""
    cells = [cell for panel in view.panels for cell in panel.cells]
    return [cell for cell in cells if cell["way"] != UNDISTURBED]


def pairs(view: View, cells: Sequence[Cell]) -> list[tuple[Row, Row]]:
    """Return the runs of `cells`, each with the undisturbed one of its seed."""
    bases = {row["seed"]: row for row in view.data.rows if row["way"] == UNDISTURBED}
    rows = [row for cell in cells for row in cell.rows]
    return [(row, bases[row["seed"]]) for row in rows if row["seed"] in bases]


def differing(view: View, cells: Sequence[Cell]) -> list[str]:
    """Return the runs whose bits are not those of the undisturbed one."""
    return [
        row["run"]
        for row, base in pairs(view, cells)
        if row["sha256"] != base["sha256"] or len(row["sha256"]) != 1
    ]


def _agreement(number: int, holds: str, exceptions: Sequence[str]) -> Told:
    return agreement(number, holds, exceptions, f"run{'s' * (number > 1)} with faults")


def same_bits(view: View) -> Iterator[Told]:
    """Yield how many disturbed runs ended with the bits of the undisturbed one, and how many had
    the loss of every step to the last bit."""
    cells = disturbed(view)
    if number := len(pairs(view, cells)):
        holds = "ended with the SHA-256 of the undisturbed run of its seed"
        yield _agreement(number, holds, differing(view, cells))
    known = [(r["run"], own, _losses(b)) for r, b in pairs(view, cells) if (own := _losses(r))]
    if known:
        steps = sum(len(own) for _, own, _ in known)
        holds = f"had the losses of the undisturbed run, to the last bit ({steps:,} steps)"
        others = [
            name for name, own, base in known if any(base.get(s) != v for s, v in own.items())
        ]
        yield _agreement(len(known), holds, others)


def _losses(row: Row) -> dict[int, float]:
    timeline: Timeline = row["_timeline"]
    return {step.step: step.loss for step in timeline.steps if step.loss is not None}


def share_interval(cell: Cell) -> Interval | None:
    found = mean_interval(cell.values("share"))
    return found and found.within(0, 1)


def effective_time(view: View) -> Iterator[Told]:
    """Yield the share of the time that went into steps that count, held to FLOOR."""
    for cell in disturbed(view):
        share, interval, floor = SHARE.estimate(cell), share_interval(cell), one_decimal(FLOOR)
        if share is None:
            continue
        start = f"{one_decimal(share)} of the time in useful steps"
        if interval is None:
            text, verdict = f"{start} in one run: too few to compare it with {floor}", "unclear"
        else:
            verdict = interval.verdict(FLOOR)
            told = {"higher": f"above {floor}", "lower": f"below {floor}"}.get(
                verdict, f"not significantly different from {floor}"
            )
            text = f"{start} (95 % CI {ends(interval, one_decimal)}), {told}"
        facts = [f"steps of {duration(_step_s(cell))}", mean_time_between(cell)]
        text = f"{text}; {', '.join(filter(None, facts))}"
        yield Told(text, label=cell["way"], verdict=verdict, interval=interval)


def mean_time_between(cell: Cell) -> str:
    """Return the number of faults and the mean time between them, in words."""
    gaps = [
        later - earlier
        for row in cell.rows
        for times in [[0.0, *(fault.at_s for fault in row["_timeline"].faults)]]
        for earlier, later in pairwise(times)
    ]
    return f"{counted(len(gaps), 'fault')}, one every {fmean(gaps):.1f} s" if gaps else ""


def _step_s(cell: Cell) -> float:
    """Return the median time of a step before the first fault."""
    times: list[float] = []
    for row in cell.rows:
        steps, faults = row["_timeline"].steps, row["_timeline"].faults
        first_s = faults[0].at_s if faults else math.inf
        times += [step.took_s for step in steps if step.ended_s < first_s] or [steps[0].took_s]
    return median(times)


def costs(view: View) -> Iterator[Told]:
    """Yield times to notice and to continue, and what was lost."""
    for cell in disturbed(view):
        if not sum(row["num_faults"] for row in cell.rows):
            continue
        texts = [
            f"{words} {_mean(times)}, at most {duration(max(times))}"
            for measure, words in ((NOTICE, "noticed after"), (CONTINUE, "next step ended after"))
            if (times := cell.values(measure.column))
        ]
        if replaced := cell.values("replaced_s"):
            number = counted(len(replaced), "time")
            texts.append(f"spares replaced ranks {number}, {_mean(replaced)} after detection")
        bases = Cell(tuple(base for _, base in pairs(view, [cell])))
        interval = WALL.ratio(cell, bases) if bases.rows else None
        if interval is not None:
            factor = f"{interval.estimate:.2f}{TIMES} ({span(interval)})"
            texts.append(f"the run takes {factor} its undisturbed time")
        again, starts = (sum(row[name] for row in cell.rows) for name in ("again", "restarts"))
        is_known = len(bases.rows) == len(cell.rows) and not differing(view, [cell])
        lost = ", no sample lost" if is_known else ""
        texts.append(f"{counted(again, 'step')} made again, {counted(starts, 'restart')}{lost}")
        yield Told("; ".join(texts), label=cell["way"])


def _mean(times: Sequence[float]) -> str:
    interval = mean_interval(times)
    if interval is None:
        return duration(fmean(times))
    return f"{duration(interval.estimate)} ({ends(interval.within(0), duration)})"


def num_faults(view: View) -> int:
    return sum(row["num_faults"] for row in view.data.runs)


def headline(view: View) -> str:
    """Return whether the bits are the same through all faults."""
    cells = disturbed(view)
    number = len(pairs(view, cells))
    if not number:
        return "No run with faults has ended together with an undisturbed one"
    if others := differing(view, cells):
        return f"Different bits after faults in {len(others)} of {counted(number, 'run')}"
    faults = sum(row["num_faults"] for cell in cells for row in cell.rows)
    shares = [share for cell in cells if (share := SHARE.estimate(cell)) is not None]
    text = f"Same bits through {counted(faults, 'fault')}"
    if not shares:
        return text
    low, high = (f"{100 * end:.1f}" for end in (min(shares), max(shares)))
    return f"{text}, {low if low == high else f'{low}–{high}'} % of the time effective"


def keys(view: View) -> list[KeyFigure]:
    """Return the effective time of each way with faults, times to notice and to continue of the
    first, and the bits."""
    figures, cells = [], disturbed(view)
    for cell in cells:
        interval, share = share_interval(cell), SHARE.estimate(cell)
        if share is not None:
            span_words = ends(interval, one_decimal) if interval else ""
            beside = "; ".join(filter(None, [span_words, mean_time_between(cell)]))
            meaning = "of the wall-clock time went into useful steps"
            figures.append(KeyFigure(cell["way"], one_decimal(share), meaning, beside))
    places = {NOTICE: 1, CONTINUE: len(figures) + 1}
    for measure, meaning in (
        (NOTICE, "until the last survivor detected a fault"),
        (CONTINUE, "from a fault to the end of the first step after the recovery"),
    ):
        if cells and (times := cells[0].values(measure.column)):
            known = mean_interval(times)
            beside = ends(known.within(0), duration) if known else "one fault"
            key = KeyFigure(cells[0]["way"], duration(fmean(times)), meaning, beside)
            figures.insert(places[measure], key)
    if number := len(pairs(view, cells)):
        value = f"{number - len(differing(view, cells))} of {number}"
        meaning = "runs with faults that ended with the SHA-256 of the undisturbed run"
        figures.append(KeyFigure("same bits", value, meaning, ""))
    return figures


def curve_rows(view: View) -> list[Row]:
    """Return the steps of runs, thinned out, and their faults on the curves, seed by seed."""
    known = [row for row in view.data.runs if row["steps"]]
    seeds = sorted({row["seed"] for row in known})[:SEEDS_DRAWN]
    rows: list[Row] = []
    for run in (row for seed in seeds for row in known if row["seed"] == seed):
        steps = [step for step in run["_timeline"].steps if step.loss is not None]
        stride = -(-len(steps) // MOST_POINTS) or 1
        chosen = {*range(0, len(steps), stride), len(steps) - 1}
        rows += [_point(run, steps[number]) for number in sorted(chosen) if steps]
        for fault in run["_timeline"].faults:
            before = [step for step in steps if step.ended_s <= fault.at_s]
            if before:
                rows.append(_point(run, before[-1], fault))
    return rows


def _point(run: Row, step: TimedStep, fault: Fault | None = None) -> Row:
    notice_s, continue_s = (fault.notice_s, fault.continue_s) if fault else (None, None)
    return {
        "panel": f"seed {run['seed']}",
        "way": run["way"],
        "run": run["run"],
        "kind": "step" if fault is None else "fault",
        "at_s": step.ended_s if fault is None else fault.at_s,
        "updates": step.step + 1,
        "loss": step.loss,
        "step_ms": 1e3 * (step.ended_s - step.began_s),
        "words": "" if fault is None else f"{SIGNALS[fault.kind]} of rank {fault.rank}",
        "noticed": "" if notice_s is None else f"after {duration(notice_s)}",
        "continued": "" if continue_s is None else f"after {duration(continue_s)}",
    }


def fault_rows(view: View) -> list[Row]:
    """Return a row a fault."""
    names = ("kind", "rank", "at_s", "step", "notice_s", "recovery_s", "continue_s", "lost_s")
    return [
        {"run": row["run"], **{name: getattr(fault, name) for name in names}}
        for row in view.data.runs
        for fault in row["_timeline"].faults
    ]


def share_words(row: Row) -> str:
    interval = share_interval(row["_cell"])
    span_words = f" ({ends(interval, one_decimal)})" if interval else ""
    return "" if row["share"] is None else f"{one_decimal(row['share'])}{span_words}"


# -- The page --------------------------------------------------------------------------------------


SOURCE = "step, metrics, injected and recovered events of all ranks"
TOOLTIP = (
    *("words|fault", "run", "at_s|time (s)|,.2f", "updates|updates before it|,d"),
    *("noticed", "continued|next step ended", "loss||.5f"),
)
TIME = Axis("at_s", "wall-clock time (s)", zero=True)


def _curves(name: str, title: str, caption: str, x: Axis, y: Axis) -> Plot:
    """A line a run, and a cross on it for each fault."""
    how: dict[str, Any] = {"x": x, "y": y, "series": "way", "tooltip": TOOLTIP}
    steps = Lines(where="datum.kind === 'step'", detail="run", marked=False, **how)
    faults = Lines(where="datum.kind === 'fault'", joined=False, cross=True, picks=False, **how)
    marks = (steps, faults)
    return Plot(name=name, title=title, caption=caption, source=SOURCE, frame="curves", mark=marks)


LOSS = Axis("loss", "training loss", scale="log")
LOSS_TIME_PLOT = _curves(
    "loss-by-time",
    "Loss against wall-clock time",
    "Each cross is a fault. Runs of one seed make the same updates, so their curves are bitwise "
    "identical, stretched in time.",
    TIME,
    LOSS,
)
LOSS_UPDATES_PLOT = _curves(
    "loss-by-updates",
    "Loss against updates",
    "The same curves over the updates: they coincide.",
    Axis("updates", "updates", zero=True),
    LOSS,
)
STEPS_PLOT = _curves(
    "steps",
    "Time of a step",
    "From the end of a step to that of the next. After ranks die, the survivors compute their "
    "share.",
    TIME,
    Axis("step_ms", "step (ms)", scale="log"),
)
SHARE_PLOT = Plot(
    name="effective-time",
    title="Effective training time",
    caption="Share of the wall-clock time spent on useful steps; mean over seeds, with its "
    "interval.",
    source=SOURCE,
    where=lambda row: bool(row["way"] != UNDISTURBED),
    known="share",
    mark=Bars(
        by="way",
        x=Axis("share", "effective time", form="%", zero=True),
        colour="--mpi",
        words="words",
        tooltip=("way", "words|effective time"),
    ),
)
SURVIVAL = Page(
    read=reader(
        of_run,
        counts=lambda row: row["status"] == "completed",
        panel="set",
        tells_left_out=True,
    ),
    cell=("way",),
    baseline=baseline(way=UNDISTURBED),
    quantities=(
        *(SHARE, WALL, NOTICE, CONTINUE),
        Measure("lost_s", how=fmean),
        *(Measure(name, how=sum) for name in ("num_faults", "again", "restarts")),
        derived("runs", lambda row: len(row["_runs"])),
        derived("words", share_words),
    ),
    frames={"curves": curve_rows, "faults": fault_rows},
    headline=headline,
    facts=lambda view: [counted(num_faults(view), "fault")],
    keys=keys,
    claims=(
        Say(
            same_bits,
            note="Bits: SHA-256 of parameters, buffers and optimizer state at the end, on every "
            "rank, compared with the undisturbed run of the same seed; and the loss of every step.",
        ),
        Say(
            effective_time,
            note="Effective time: share of the time from the start of the first step to the end of "
            "the last. Steps between a fault and its recovery count with the median of the "
            "undisturbed steps before them; a repeated step counts once. The mean over the runs is "
            f"compared with {one_decimal(FLOOR)}.",
        ),
        Say(
            costs,
            note="Cost of a fault: time until the last survivor detects it, and until the end of "
            "the first step after the recovery; means over faults.",
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
            note="Means over runs and faults. To notice: until the last survivor detects the "
            "fault; to continue: until the end of the first useful step after the recovery.",
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
            note="New world: from detection to a world without the dead ranks, on the slowest "
            "survivor. Lost: by how much the steps until then took longer than those before.",
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
            note="First digits of the SHA-256 in its certificate, the same on every rank that "
            "completed.",
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
