"""Predictions beside measurements, published and of this machine, as text, JSON and a page. Pure.

Every mean has the rules that know nothing beside it, and the worst stands first.
"""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from phalanx.errors import UserError
from phalanx.plan.predict import Range
from phalanx.plan.published import CaseError, grouped, left_out

WIDTH = 130
NUM_WORST = 8
"""Rows that are shown one by one."""
FROM_NODE = (
    "Mean errors in points of efficiency, from one node or, where a table has none, the smallest "
    "row. perfect: no loss beyond it. inside: rows in the 90 % range, whose mean width follows."
)
HERE = (
    "Mean errors in percent of a step or a run, of 2 ranks unless more are named. floor: the odd "
    "rounds beside the even ones. alone ÷ p: the time of one rank, divided."
)
INTRODUCTION = """\
# Plans beside measurements

*For users who ask how far to trust a plan, and for developers who change one.*

A command makes this page. The worst stands first, and every mean has the rules that know nothing
beside it. [Plans](plan.md#how-well-it-does) says which bounds and constants were chosen in sight of
these tables; nothing else is fitted on rows that are predicted.

    phalanx plan --validate {words}
"""


class CaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """A model and a case on this machine: seconds of a step, predicted and measured."""

    model: str
    case: str
    predicted_s: float
    low_s: float
    high_s: float
    measured_s: float
    floor: float
    """Difference of the medians of odd and even rounds, as a share."""
    perfect_s: float
    """The rule that knows nothing: the time of one rank alone, divided among the ranks."""
    rounds: int | None = None


class ErrorTable(NamedTuple):
    """A table of any form; its first column is of words."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Cases that are measured elsewhere than in the tables that ship: a file of `--here`."""

    here: list[CaseResult] = []
    tables: list[ErrorTable] = []
    """Further tables, for the page alone."""


def read_measured(paths: Iterable[Path]) -> Measured:
    """Return the cases of files that `phalanx plan --validate --rounds N --json` printed.

    Raises: UserError for a file that is none.
    """
    found = []
    for path in paths:
        try:
            found.append(msgspec.json.decode(path.read_bytes(), type=Measured))
        except (OSError, msgspec.DecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise UserError(
                f"--here {path} is no file of rounds: {reason}; `phalanx plan --validate "
                "--rounds 9 --json` prints one"
            ) from error
    return Measured(
        here=[case for each in found for case in each.here],
        tables=[table for each in found for table in each.tables],
    )


class Judged(NamedTuple):
    """A prediction beside what was measured, in points of efficiency or percent of a time."""

    group: str
    kind: str
    name: str
    shown: tuple[str, str, str]
    """Measured value, predicted one and its range, as they are read."""
    error: float
    is_inside: bool
    """True if the measured value is in the 90 % range."""
    width: float
    beside: tuple[float, ...]
    """Errors of rules that know nothing, and what else stands beside."""


def validation_tables(cases: Sequence[CaseError], measured: Measured) -> list[ErrorTable]:
    """Return what there is to show of predicted rows and of what was measured elsewhere."""
    alone = [judge_row(case, case.told, case.perfect) for case in cases]
    with_row = [judge_row(c, c.with_row, c.last_row, c.perfect) for c in cases if c.with_row]
    tables = [
        summary_table("Published tables, from one node", alone, ["perfect"], FROM_NODE),
        summary_table(
            "Published tables, with one row over the network",
            with_row,
            ["last stays", "perfect"],
            "last stays: the efficiency of that row stays.",
        ),
        _singles("The worst rows, from one node", alone, NUM_WORST),
    ]
    for rounds in sorted({each.rounds or 0 for each in measured.here}, reverse=True):
        title = f"Ranks of one machine, {rounds or 'unknown'} rounds"
        here = [_judge_here(each) for each in measured.here if (each.rounds or 0) == rounds]
        tables += [
            summary_table(f"{title}, by case", here, ["floor", "alone ÷ p"], HERE),
            _singles(title, here, len(here)),
        ]
    return tables


def validation_page(
    cases: Sequence[CaseError], measured: Measured, words: Sequence[str] | None = None
) -> str:
    """Return all tables, and what is not predicted, as Markdown. words: options that make this page
    again, which its introduction names; None: no introduction."""
    lines = [] if words is None else [INTRODUCTION.format(words=" ".join(words))]
    for table in [*validation_tables(cases, measured), *measured.tables]:
        lines += _markdown(table)
    lines += ["## Not predicted", "", *(f"- {name}: {why}" for name, why in left_out().items())]
    return "\n".join(lines) + "\n"


def as_builtins(cases: Sequence[CaseError], measured: Measured) -> dict[str, Any]:
    """Return every predicted row and what was measured elsewhere as plain values."""
    published = [
        {
            "table": case.series.table,
            "series": case.series.name,
            "nodes": case.row.nodes,
            "devices": case.row.devices,
            "measured": case.measured,
            "from_one_node": case.told._asdict(),
            "with_one_row": None if case.with_row is None else case.with_row.median,
            "with_one_row_range": None if case.with_row is None else case.with_row._asdict(),
            "last_row_stays": case.last_row,
            "perfect": case.perfect,
        }
        for case in cases
    ]
    others: dict[str, Any] = msgspec.to_builtins(measured)
    return {**others, "published": published}


def judge_row(case: CaseError, told: Range, *rules: float) -> Judged:
    """Return a prediction of an efficiency in points. rules: what rules that know nothing say."""
    return Judged(
        group=case.series.table,
        kind="all sharded" if case.series.is_sharded else "all data parallel",
        name=f"{case.series.table}, {case.series.name}, {case.row.devices}",
        shown=(f"{case.measured:.0f}", f"{told.median:.0f}", f"{told.low:.0f}–{told.high:.0f}"),
        error=told.median - case.measured,
        is_inside=told.low <= case.measured <= told.high,
        width=told.high - told.low,
        beside=tuple(abs(rule - case.measured) for rule in rules),
    )


def _judge_here(case: CaseResult) -> Judged:
    told = Range(case.predicted_s, case.low_s, case.high_s)
    rule_error = case.perfect_s / case.measured_s - 1
    return judge_time(case.case, case.model, case.measured_s, told, case.floor, rule_error)


def judge_time(group: str, name: str, measured_s: float, told: Range, *beside: float) -> Judged:
    """Return a prediction of seconds in percent of the measured ones. beside: as shares."""
    middle, low, high = (f"{1e3 * seconds:.3g}" for seconds in told)
    return Judged(
        group=group,
        kind="all",
        name=f"{name}, {group}",
        shown=(f"{1e3 * measured_s:.3g} ms", middle, f"{low}–{high}"),
        error=100 * (told.median / measured_s - 1),
        is_inside=told.low <= measured_s <= told.high,
        width=100 * (told.high - told.low) / measured_s,
        beside=tuple(100 * abs(each) for each in beside),
    )


def summary_table(
    title: str, judged: Sequence[Judged], beside: Sequence[str], note: str
) -> ErrorTable:
    """Return the means of each group, the worst first, then those of each kind and of all."""
    groups = grouped(judged, lambda each: each.group)
    kinds = grouped(judged, lambda each: each.kind)
    ordered = sorted(groups.items(), key=lambda item: -_mean(each.error for each in item[1]))
    several = kinds if len(kinds) > 1 else {}
    return ErrorTable(
        title,
        ["", "rows", "plan", "worst", *beside, "inside", "width"],
        [_means(*item) for item in (*ordered, *several.items(), ("all", judged))],
        note,
    )


def _means(name: str, judged: Sequence[Judged]) -> list[str]:
    return [
        name,
        f"{len(judged)}",
        f"{_mean(each.error for each in judged):.1f}",
        f"{max((each.error for each in judged), key=abs):+.1f}",
        *(f"{_mean(column):.1f}" for column in zip(*(e.beside for e in judged), strict=True)),
        *coverage(judged),
    ]


def coverage(judged: Sequence[Judged]) -> tuple[str, str]:
    """Return the share of the rows in their ranges and the mean width, as they are read."""
    inside = sum(each.is_inside for each in judged)
    return f"{100 * inside / len(judged):.0f} %", f"{_mean(each.width for each in judged):.0f}"


def _singles(title: str, judged: Sequence[Judged], most: int) -> ErrorTable:
    worst = sorted(judged, key=lambda each: -abs(each.error))[:most]
    rows = [[each.name, *each.shown, f"{each.error:+.1f}"] for each in worst]
    return ErrorTable(title, ["", "measured", "plan", "90 % range", "error"], rows)


def _mean(errors: Iterable[float]) -> float:
    return statistics.fmean(map(abs, errors))


def _markdown(table: ErrorTable) -> list[str]:
    note = [*textwrap.wrap(table.note, WIDTH), ""] if table.note else []
    lines = [f"## {table.title}", "", *note]
    marks = ["---", *("--:" for _ in table.header[1:])]
    return lines + [f"| {' | '.join(row)} |" for row in (table.header, marks, *table.rows)] + [""]
