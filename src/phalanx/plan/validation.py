"""Predictions beside measurements, published and of this machine, as text, JSON and a page. Pure.

Every mean has the rules that know nothing beside it, and the worst stands first.
"""

from __future__ import annotations

import itertools
import math
import statistics
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from phalanx.errors import UserError
from phalanx.plan.predict import Range
from phalanx.plan.published import CaseError, grouped, left_out, predicted_rows

WIDTH, PAGE_WIDTH = 80, 130
NUM_WORST = 8
"""Rows that are shown one by one."""
BOUNDS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.6)
"""Smallest shares of a stated bandwidth that are tried as what programs reach."""
FROM_NODE = (
    "Mean errors in points of efficiency, from one node or, where a table has none, the smallest "
    "row. perfect: no loss beyond it. inside: rows in the 90 % range, whose mean width follows."
)
HERE = (
    "Mean errors in percent of a step. floor: the odd rounds beside the even ones. alone ÷ 2: half "
    "the time of one rank."
)
LAYOUTS = (
    "Mean errors in percent of an iteration. Rates of the device are those of rows of one node; of "
    "BigScience times the median ratio of three rows, which are left out. alike: all layouts take "
    "as long as the median one."
)
CHOICES = (
    "order: Kendall's tau over pairs more than 5 % apart. By how many percent the layout that is "
    "named first, the best of the three named first, and the best of any three are slower than the "
    "best of all."
)
OTHERS = (
    "bound: smallest share of a stated bandwidth that programs are taken to reach, the largest one "
    "whose ranges hold 90 % of the rows of all other tables."
)
INTRODUCTION = """\
# Plans beside measurements

*For users who ask how far to trust a plan, and for developers who change one.*

A command makes this page. Nothing is fitted on rows that are predicted, the worst stands first, and
every mean has the rules that know nothing beside it. [Plans](plan.md) says how they are made.

    phalanx plan --validate {words}

In sight of the published tables were chosen: the share of a stated bandwidth that sums reach (0.2
to 1; the last table chooses it without the table that it is used on), the bytes of gradients in
mixed precision (2 to 4 per value, as programs sum them in either), the passes of BERT-large (1 to
16, which its table does not state), and that the part of a run outside its steps is what any pair
of rows says. Assumed: nodes of 8 H100 have 400 GB/s, which llm-foundry does not state. The layouts'
flops and bytes are those of tests/plan/layouts, where the rows of one node that calibrate were
chosen in sight of the others; pipelines and sums are the product's.
"""


class CaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """A model or a layout, and a case: seconds of a step, predicted and measured."""

    model: str
    case: str
    predicted_s: float
    low_s: float
    high_s: float
    measured_s: float
    floor: float = 0.0
    """Difference of the medians of odd and even rounds, as a share."""
    perfect_s: float
    """The rule that knows nothing: the time of one rank alone, divided among the ranks; of layouts
    the median of all."""
    rounds: int | None = None
    is_known: bool = False
    """True if the predictions of other cases are corrected by this one."""

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1

    @property
    def rule_error(self) -> float:
        return self.perfect_s / self.measured_s - 1


class ErrorTable(NamedTuple):
    """A table of any form; its first column is of words."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Cases that are measured elsewhere than in the tables that ship: a file of `--here`."""

    here: list[CaseResult] = []
    layouts: list[CaseResult] = []
    tables: list[ErrorTable] = []
    """Further tables of the page."""


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
        layouts=[case for each in found for case in each.layouts],
        tables=[table for each in found for table in each.tables],
    )


class Judged(NamedTuple):
    """A prediction beside what was measured, in points of efficiency or percent of the time."""

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
    alone = [_judge(case, case.told, case.perfect) for case in cases]
    with_row = [_judge(c, c.with_row, c.last_row, c.perfect) for c in cases if c.with_row]
    tables = [
        _summary("Published tables, from one node", alone, ["perfect"], FROM_NODE),
        _summary(
            "Published tables, with one row over the network",
            with_row,
            ["last stays", "perfect"],
            "last stays: the efficiency of that row stays.",
        ),
        _singles("The worst rows, from one node", alone, NUM_WORST),
    ]
    if measured.here:
        title = "Two ranks of one machine"
        here = [_judge_here(each, each.floor, each.rule_error) for each in measured.here]
        rounds = min(each.rounds or 0 for each in measured.here)
        note = f"{HERE} Rounds: {rounds or 'not stated'}."
        tables += [
            _summary(f"{title}, by case", here, ["floor", "alone ÷ 2"], note),
            _singles(title, here, len(here)),
        ]
    if measured.layouts:
        title = "Layouts of transformers"
        layouts = [_judge_here(e, e.rule_error) for e in measured.layouts if not e.is_known]
        tables += [
            _summary(title, layouts, ["alike"], LAYOUTS),
            _choices(f"{title}: the three that a plan names", measured.layouts),
        ]
    return tables


def validation_lines(cases: Sequence[CaseError], measured: Measured) -> list[str]:
    """Return all tables as lines of a terminal, and what is not predicted."""
    lines = []
    for table in validation_tables(cases, measured):
        lines += [*_text(table), ""]
    for name, why in left_out().items():
        lines += textwrap.wrap(f"not predicted: {name}: {why}", WIDTH, subsequent_indent="  ")
    return lines


def validation_page(
    cases: Sequence[CaseError], measured: Measured, words: Sequence[str] = ()
) -> str:
    """Return all tables as a page of Markdown. words: options that make this page again."""
    lines = [INTRODUCTION.format(words=" ".join(words))]
    for table in [*validation_tables(cases, measured), *measured.tables, _by_other_tables()]:
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


def _judge(case: CaseError, told: Range, *rules: float) -> Judged:
    is_sharded = case.series.sums > 1
    return Judged(
        group=case.series.table,
        kind="all sharded" if is_sharded else "all data parallel",
        name=f"{case.series.table}, {case.series.name}, {case.row.devices}",
        shown=(f"{case.measured:.0f}", f"{told.median:.0f}", f"{told.low:.0f}–{told.high:.0f}"),
        error=told.median - case.measured,
        is_inside=told.low <= case.measured <= told.high,
        width=told.high - told.low,
        beside=tuple(abs(rule - case.measured) for rule in rules),
    )


def _judge_here(case: CaseResult, *beside: float) -> Judged:
    told = (case.predicted_s, case.low_s, case.high_s)
    middle, low, high = (f"{1e3 * seconds:.3g}" for seconds in told)
    return Judged(
        group=case.case,
        kind="all",
        name=f"{case.model}, {case.case}",
        shown=(f"{1e3 * case.measured_s:.3g} ms", middle, f"{low}–{high}"),
        error=100 * case.error,
        is_inside=case.low_s <= case.measured_s <= case.high_s,
        width=100 * (case.high_s - case.low_s) / case.measured_s,
        beside=tuple(100 * abs(each) for each in beside),
    )


def _choices(title: str, layouts: Sequence[CaseResult]) -> ErrorTable:
    rows = []
    for name, some in grouped(layouts, lambda each: each.case).items():
        told, measured = [e.predicted_s for e in some], [e.measured_s for e in some]
        losses = (best_of(told, measured, 1), best_of(told, measured, 3), best_of_any(measured, 3))
        order = f"{rank_agreement(told, measured, apart=0.05):.2f}"
        rows.append([name, f"{len(some)}", order, *(f"{100 * loss:.1f}" for loss in losses)])
    return ErrorTable(title, ["", "rows", "order", "first", "best of 3", "any 3"], rows, CHOICES)


def rank_agreement(told: Sequence[float], measured: Sequence[float], apart: float) -> float:
    """Return Kendall's tau over the pairs whose measured values are more than `apart` apart."""
    pairs = [
        (told[i] < told[j]) == (measured[i] < measured[j])
        for i, j in itertools.combinations(range(len(told)), 2)
        if abs(math.log(measured[i] / measured[j])) > apart
    ]
    return 2 * sum(pairs) / max(1, len(pairs)) - 1


def best_of(told: Sequence[float], measured: Sequence[float], number: int) -> float:
    """Return by how much the best of those that are told to be the best is slower than the best of
    all, as a share."""
    first = sorted(range(len(told)), key=lambda each: told[each])[:number]
    return min(measured[each] for each in first) / min(measured) - 1


def best_of_any(measured: Sequence[float], number: int) -> float:
    """Return the same of `number` that are picked at random, on average."""
    picked = itertools.combinations(measured, min(number, len(measured)))
    return statistics.fmean(min(some) for some in picked) / min(measured) - 1


def _by_other_tables() -> ErrorTable:
    """Return the coverage of each table where the bound of the bandwidth is chosen on the others:
    the narrowest that holds 90 % of their rows."""
    by_bound = {
        bound: [_judge(case, case.told) for case in predicted_rows(bound)] for bound in BOUNDS
    }
    rows, found = [], []
    for table in grouped(by_bound[BOUNDS[0]], lambda each: each.group):
        held = {
            bound: statistics.fmean(each.is_inside for each in judged if each.group != table)
            for bound, judged in by_bound.items()
        }
        chosen = max(
            (bound for bound in BOUNDS if held[bound] >= 0.9),
            default=max(held, key=held.__getitem__),
        )
        left = [each for each in by_bound[chosen] if each.group == table]
        found += left
        rows.append([table, f"{len(left)}", f"{chosen:g}", *_coverage(left)])
    rows.append(["all", f"{len(found)}", "", *_coverage(found)])
    header = ["table left out", "rows", "bound", "inside", "width"]
    return ErrorTable("Ranges whose bound was chosen on the other tables", header, rows, OTHERS)


def _summary(title: str, judged: Sequence[Judged], beside: Sequence[str], note: str) -> ErrorTable:
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
        *_coverage(judged),
    ]


def _coverage(judged: Sequence[Judged]) -> tuple[str, str]:
    inside = sum(each.is_inside for each in judged)
    return f"{100 * inside / len(judged):.0f} %", f"{_mean(each.width for each in judged):.0f}"


def _singles(title: str, judged: Sequence[Judged], most: int) -> ErrorTable:
    worst = sorted(judged, key=lambda each: -abs(each.error))[:most]
    rows = [[each.name, *each.shown, f"{each.error:+.1f}"] for each in worst]
    return ErrorTable(title, ["", "measured", "plan", "90 % range", "error"], rows)


def _mean(errors: Iterable[float]) -> float:
    return statistics.fmean(map(abs, errors))


def _text(table: ErrorTable) -> list[str]:
    """Return a table as lines of a terminal."""
    rows = [table.header, *table.rows]
    first, *widths = (max(map(len, column)) for column in zip(*rows, strict=True))
    first = min(first, WIDTH - sum(widths) - 2 * len(widths) - 1)
    lines = [table.title]
    for name, *cells in rows:
        padded = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        lines.append(
            "  ".join([f" {textwrap.shorten(name, first, placeholder=' …'):{first}}", *padded])
        )
    return [*lines, *textwrap.wrap(table.note, WIDTH)]


def _markdown(table: ErrorTable) -> list[str]:
    note = [*textwrap.wrap(table.note, PAGE_WIDTH), ""] if table.note else []
    lines = [f"## {table.title}", "", *note]
    marks = ["---", *("--:" for _ in table.header[1:])]
    return lines + [f"| {' | '.join(row)} |" for row in (table.header, marks, *table.rows)] + [""]
