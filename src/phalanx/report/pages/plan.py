"""The page of a plan: predictions with their ranges, beside what was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from phalanx.records.files import read_record, record_file
from phalanx.records.plan import Plan, PlannedRange, PlannedRanks
from phalanx.records.plan_texts import (
    PARTS,
    TRIED,
    bytes_text,
    doubts_of,
    epochs_text,
    findings_of,
    lack_text,
    time_text,
)
from phalanx.records.schema import Study
from phalanx.report.cells import Row
from phalanx.report.claims import TIMES
from phalanx.report.content import Column, KeyFigure, words
from phalanx.report.format import counted, three_digits, whole_percent
from phalanx.report.marks import Axis, Bars, Lines, Mark, Spans
from phalanx.report.training_frames import with_ends
from phalanx.report.values import ChartSection, Page, Plot, Say, StudyRows, TableSpec, Told, View
from phalanx.report.values import word as word_of

RECORD, SHOWN = "plan.json", 12
COLOURS = {
    "compute": "--backward",
    "waiting": "--data",
    "exposed": "--communication",
    "outside the steps": "--optimizer",
}
ASSUMPTIONS = (
    ("Ranges", "A figure lies in its range with 90 %; what is not known spans its bounds."),
    ("Not predicted", "Accuracy: a larger batch is priced in time alone, and `phalanx study "
     "large-batch` measures what it does to accuracy."),
    ("How well it does", "`phalanx plan --validate` compares predictions with published tables, "
     "and with --rounds with runs of this machine; docs/plan_validation.md has every kind of "
     "case with its error."),
)  # fmt: skip


def holds_plan(folder: Path) -> bool:
    return record_file(folder, Plan).exists()


def read_plan_rows(folder: Path) -> StudyRows:
    """Read a plan, a row a number of ranks. Raises: UserError when it cannot be read."""
    plan = read_record(folder, Plan)
    machine = plan.machine or "this machine, without a network"
    return StudyRows(
        study=Study(
            study=folder.name,
            kind="plan",
            command=plan.command,
            started_at=plan.started_at,
            runs=[],
        ),
        folder=folder,
        runs=(),
        rows=[_predicted(plan, each) for each in plan.rows],
        environments=(),
        notice=". ".join([*doubts_of(plan), ""]).strip(),
        notes=[("Calibrated on", plan.calibrated), ("Planned for", machine), *ASSUMPTIONS],
    )


def _with_range(name: str, planned: PlannedRange, factor: float = 1.0) -> dict[str, float]:
    ends = {"": planned.median, "_low": planned.low, "_high": planned.high}
    return {f"{name}{end}": factor * value for end, value in ends.items()}


def _predicted(plan: Plan, each: PlannedRanks) -> Row:
    memory, has = each.peak_bytes or each.state_bytes or 0.0, plan.machine_nodes
    beyond = f"as if it had more than {has} nodes" if has and each.nodes > has else ""
    return {
        **{"_plan": plan, "panel": plan.program, "run": RECORD, "source": "predicted"},
        **{"cell": each.ranks, "ranks": each.ranks, "nodes": each.nodes},
        "name": counted(each.ranks, "rank"),
        **_with_range("step_s", each.step_s),
        **_with_range("speed_up", each.speed_up),
        **_with_range("efficiency", each.speed_up, 1 / each.ranks),
        **_with_range("whole_s", each.whole_s),
        **_with_range("node_hours", each.whole_s, each.nodes / 3600),
        **{"cost": each.cost, "sent": each.sent_bytes, "memory": memory or None},
        **{"gib": memory / 2**30, "limit_gib": (plan.memory_bytes or 0.0) / 2**30 or None},
        "remark": "; ".join(filter(None, (beyond, lack_text(memory, plan.memory_bytes)))) or None,
    }


def _plan(view: View) -> Plan:
    plan: Plan = view.data.rows[0]["_plan"]
    return plan


def measured_and_predicted(view: View) -> list[Row]:
    """Return the rows of the plan, each after what was measured on as many ranks."""
    plan, first, rows = _plan(view), view.data.rows[0], list[Row]()
    one_s = first["speed_up"] * first["step_s"]
    none = {**dict.fromkeys(first), "panel": first["panel"], "run": RECORD}

    def measured(source: str, ranks: int, nodes: int, step_s: float, speed_up: float) -> Row:
        found = {"source": source, "ranks": ranks, "nodes": nodes, "step_s": step_s}
        return {**none, **found, "speed_up": speed_up, "efficiency": speed_up / ranks}

    if plan.alone_s is not None:
        rows.append(measured("measured here", 1, 1, plan.alone_s, 1.0))
    for row, each in zip(view.data.rows, plan.rows, strict=True):
        if (took_s := each.measured_s) is not None:
            rows.append(measured("measured", each.ranks, each.nodes, took_s, one_s / took_s))
        rows.append(row)
    return rows


def part_rows(view: View) -> list[Row]:
    """Return a row a part of the whole training, in percent of it, laid end to end."""
    rows = list[Row]()
    for row, each in zip(view.data.rows, _plan(view).rows, strict=True):
        of_steps = 1 - each.outside_s / each.whole_s.median
        steps = [of_steps * each.parts[name] / each.parts["step_s"] for name in PARTS]
        end = 0.0
        for part, share in zip(COLOURS, [*steps, 1 - of_steps], strict=True):
            start, end = end, end + 100 * share
            rows.append({**row, "part": part, "share": share, "start": start, "end": end})
    return rows


def layout_rows(view: View) -> list[Row]:
    """Return a row a layout, best first, the first that fit with the command that tries each."""
    plan = _plan(view)
    tried = [each for each in plan.layouts if not each.too_large_bytes][:TRIED]
    return [
        {
            **{"panel": plan.program, "options": each.options},
            **{"memory": each.peak_bytes, "sent": each.sent_bytes},
            **_with_range("step_s", each.step_s),
            "remark": lack_text(each.too_large_bytes, 0.0) or None,
            "try": f"phalanx train {each.options} --ranks {each.ranks}" if each in tried else None,
        }
        for each in plan.layouts[:SHOWN]
    ]


def headline(view: View) -> str:
    at, less = _plan(view).worth
    if less is not None and at.ranks == view.data.rows[0]["ranks"]:
        at, start = less, "By the median not worth it: "
    else:
        start = "By the median worth it to " if len(view.data.rows) > 1 else "Predicted for "
    speed = f"{three_digits(at.speed_up.low)}–{three_digits(at.speed_up.high)}{TIMES}"
    return f"{start}{counted(at.ranks, 'rank')}, {speed} as fast"


def facts(view: View) -> list[str]:
    plan = _plan(view)
    what = f"batches of {plan.global_batch:,}", epochs_text(plan.epochs)
    return [f"Predicted, not run: {plan.program}", plan.options, *what]


def keys(view: View) -> list[KeyFigure]:
    """Return the figures of the most ranks that are worth it."""
    plan, (at, _) = _plan(view), _plan(view).worth
    row = next(row for row in view.data.rows if row["ranks"] == at.ranks)
    price = "" if at.cost is None else f"for {at.cost:.3g} {plan.currency}"
    shown: list[tuple[str, str, Callable[[float], str], str]] = [
        ("Speed-up", "speed_up", three_digits, "over one rank"),
        ("Whole training", "whole_s", time_text, epochs_text(plan.epochs)),
        ("Node hours", "node_hours", "{:.3g}".format, price),
    ]
    where = f"on {row['name']}, {counted(at.nodes, 'node')}"
    return [
        KeyFigure(f"{title} {where}", form(row[name]), meaning,
                  f"90 %: {form(row[f'{name}_low'])}–{form(row[f'{name}_high'])}")
        for title, name, form, meaning in shown
    ]  # fmt: skip


def tell(view: View) -> Iterator[Told]:
    for about, text in findings_of(_plan(view)):
        yield Told(text, label=about.capitalize())


def _plot(title: str, caption: str, mark: Mark | Sequence[Mark], frame: str = "cells") -> Plot:
    name, source = word_of(title), f"{RECORD}: rows"
    return Plot(name=name, title=title, caption=caption, mark=mark, frame=frame, source=source)


TOOLTIP = (
    *("source", "ranks:Q", "nodes:Q", "step_s|step (s)|,.3~g", "speed_up|speed-up|.3~g"),
    *("speed_up_low|from|.3~g", "speed_up_high|to|.3~g", "efficiency||.1%"),
    *("whole_s|whole training (s)|,.3~g", "node_hours|node hours|,.3~g", "cost||,.3~g"),
)
_axis = partial(Axis, scale="auto", zero=True)
_over_ranks = partial(
    Lines, x=Axis("ranks", "ranks", scale="counts"), series="source", spread=True, tooltip=TOOLTIP
)
_speed_up = partial(_over_ranks, y=_axis("speed_up", "speed-up"))
PREDICTED = "datum.source === 'predicted'"
SPEED_UP = _plot(
    "Speed-up",
    "Over one rank: median and 90 % range of the prediction, and what was measured; the dashed "
    "line is perfect scaling.",
    [
        _speed_up(where=PREDICTED, ideal="datum.ranks", ideal_name="perfect"),
        _speed_up(where=f"!({PREDICTED})", spread=False, joined=False, picks=False),
    ],
    "beside measured",
)
WHERE = _plot(
    "Parts of the whole training",
    "In the middle of all that is unknown. Waiting: for the slowest rank. Exposed: messages and "
    "bubbles that nothing hides. Outside the steps: start, evaluations, checkpoints.",
    Spans(by="name", ends=("start", "end"), title="share of the whole training (%)", kind="part",
          colours=COLOURS, tooltip=("ranks:Q", "part", "share||.1%")),
    "parts",
)  # fmt: skip
MEMORY = _plot(
    "Memory of a rank",
    "The most of its process, where that was measured, else its state; dashed: what it may have.",
    Bars(by="name", x=Axis("gib", "GiB", zero=True), colour="--mpi", level="limit_gib",
         tooltip=("ranks:Q", "gib|GiB|.3~g", "limit_gib|may have|.3~g")),
)  # fmt: skip
WHOLE = _plot(
    "Time of the whole training",
    "Start, all epochs, evaluations and checkpoints.",
    _over_ranks(y=_axis("whole_s", "seconds")),
)
HOURS = _plot(
    "Node hours",
    "Nodes that the ranks fill, times the whole training.",
    _over_ranks(y=_axis("node_hours", "node hours")),
)
STEP: Column[Row] = Column("step", with_ends("step_s", time_text))
OF_RANK: tuple[Column[Row], ...] = (
    Column("memory a rank", "memory", bytes_text),
    Column("sent a rank and step", "sent", bytes_text),
    words("remark", "remark", only="known"),
)
PLAN = Page(
    read=read_plan_rows,
    frames={
        "beside measured": measured_and_predicted,
        "parts": part_rows,
        "layouts": layout_rows,
    },
    headline=headline,
    facts=facts,
    keys=keys,
    claims=(Say(tell),),
    leading=(SPEED_UP,),
    sections=(
        ChartSection("Where it goes", (WHERE, MEMORY)),
        ChartSection("What it takes", (WHOLE, HOURS)),
    ),
    tables=(
        TableSpec(
            title="Scaling",
            note="Predicted figures with their 90 % ranges; speed-ups over one rank.",
            frame="beside measured",
            columns=(
                *(words("row", "source"), Column("ranks", "ranks"), Column("nodes", "nodes")),
                *(STEP, Column("speed-up", with_ends("speed_up", three_digits))),
                Column("efficiency", with_ends("efficiency", whole_percent)),
                Column("whole training", with_ends("whole_s", time_text)),
                Column("node hours", with_ends("node_hours", ".3g")),
                *(Column("cost", "cost", "{:.3g}".format, only="known"), *OF_RANK),
            ),
        ),
        TableSpec(
            title="Layouts",
            note=f"Best first, by the median of a step; {SHOWN} at most.",
            frame="layouts",
            columns=(
                words("options", "options"),
                STEP,
                *OF_RANK,
                words("to try it", "try", only="known"),
            ),
        ),
    ),
)
"""The page of `plan.json`."""
