"""Measured layouts of transformers beside predictions by the product's pipelines and sums.

Which rows of one node calibrate (of four samples and more, where launches do not hide what kernels
take) was chosen in sight of the rows of 64 and 256 GPUs; nothing is fitted on them.
`python -m tests.plan.layouts.test_layouts` writes the file that the page of validation is made of.
"""

import itertools
import math
import re
import statistics
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import msgspec
import numpy as np
import pytest

from phalanx.parallel.pipeline.timeline import ideal_bubble
from phalanx.plan.machine import read_machine
from phalanx.plan.predict import Range
from phalanx.plan.validation import (
    ErrorTable,
    Measured,
    judge_time,
    read_measured,
    summary_table,
)
from tests.plan.layouts.transformer import (
    MEMORY_GB,
    Rates,
    Row,
    calibrate,
    is_computed_again,
    memory_gb,
    predict,
    read_rows,
)

FILE = Path(__file__).parents[3] / "benchmarks" / "plan_validation" / "layouts.json"
FEWEST_SAMPLES = 4
NUM_KNOWN = 3
"""Rows of BigScience of which the median ratio is taken: those that a plan names first."""
VTRAIN, JEAN_ZAY = read_machine("vtrain-a100"), read_machine("jean-zay-a100")
SUMS = VTRAIN.all_reduce
SINGLE = list(read_rows("vtrain_a100_single_node.csv"))
CALIBRATED = [row for row in SINGLE if row.pp == 1 and row.micro_batch >= FEWEST_SAMPLES]
BIG = list(read_rows("bigscience_a100_layouts.csv"))


LAYOUTS = (
    "Mean errors in percent of an iteration. Rates of the device are those of rows of one node; of "
    "BigScience times the median ratio of three rows, which are left out. alike: all layouts take "
    "as long as the median one. Flops and bytes are those of tests/plan/layouts, where the rows of "
    "one node that calibrate were chosen in sight of the others; the rest is the product's."
)
CHOICES = (
    "order: Kendall's tau over pairs more than 5 % apart. By how many percent the layout that is "
    "named first, the best of the three named first, and the best of any three are slower than the "
    "best of all."
)


class Case(NamedTuple):
    """A layout, and its iteration."""

    words: str
    told: Range
    measured_s: float
    is_known: bool
    """True if the predictions of the others are corrected by this one."""


@cache
def rates() -> Rates:
    return calibrate(CALIBRATED, VTRAIN, SUMS)


@cache
def spread() -> tuple[float, float, float]:
    """The 90 % range of measured to predicted times on one node, and the mean error, of rows that
    the rates are not of."""
    rest = [row for row in SINGLE if row not in CALIBRATED]
    chosen = np.random.default_rng(0).permutation(len(rest))[:200]
    ratios = []
    for row in (rest[number] for number in chosen):
        assert row.seconds is not None
        ratios.append(row.seconds / predict(row, rates(), VTRAIN, SUMS, again=False))
    low, high = np.quantile(ratios, (0.05, 0.95))
    return float(low), float(high), fmean(abs(1 / ratio - 1) for ratio in ratios)


def measured_of(row: Row) -> float:
    assert row.seconds is not None
    return row.seconds


@cache
def groups() -> dict[str, list[Row]]:
    multi = list(read_rows("vtrain_a100_64_256.csv"))
    found = {
        f"vTrain, {gpus} GPUs": [row for row in multi if row.gpus == gpus] for gpus in (64, 256)
    }
    for day in sorted({row.day for row in BIG}):
        rows = [
            row
            for row in BIG
            if row.day == day and row.seconds and row.heads == 64 and row.global_batch >= 2000
        ]
        if len(rows) > NUM_KNOWN:
            found[f"BigScience, {day}"] = rows
    return found


@cache
def cases(group: str) -> list[Case]:
    """The layouts of a group; of BigScience times the median ratio of the three named first."""
    rows = groups()[group]
    is_big, again = group.startswith("BigScience"), is_computed_again(rows)
    machine = JEAN_ZAY if is_big else VTRAIN
    told = [predict(row, rates(), machine, SUMS, again=again) for row in rows]
    measured, ratio, known = [measured_of(row) for row in rows], 1.0, []
    if is_big:
        known = sorted(range(len(rows)), key=lambda number: told[number])[:NUM_KNOWN]
        ratio = statistics.median(measured[number] / told[number] for number in known)
    low, high, _ = spread()
    return [
        Case(
            row.words,
            Range(*(ratio * factor * told[number] for factor in (1, low, high))),
            measured[number],
            number in known,
        )
        for number, row in enumerate(rows)
    ]


def mean_error(some: list[Case]) -> float:
    """Percent, as a page shows it: with one decimal."""
    errors = [each.told.median / each.measured_s - 1 for each in some if not each.is_known]
    return round(100 * fmean(map(abs, errors)), 1)


def of_both(group: str) -> tuple[list[float], list[float]]:
    """Told and measured times of a group."""
    some = cases(group)
    return [each.told.median for each in some], [each.measured_s for each in some]


def rank_agreement(told: Sequence[float], measured: Sequence[float], apart: float) -> float:
    """Kendall's tau over the pairs whose measured values are more than `apart` apart."""
    pairs = [
        (told[i] < told[j]) == (measured[i] < measured[j])
        for i, j in itertools.combinations(range(len(told)), 2)
        if abs(math.log(measured[i] / measured[j])) > apart
    ]
    return 2 * sum(pairs) / max(1, len(pairs)) - 1


def best_of(told: Sequence[float], measured: Sequence[float], number: int) -> float:
    """By how many percent the best of those told to be the best is slower than the best of all."""
    first = sorted(range(len(told)), key=lambda each: told[each])[:number]
    return 100 * (min(measured[each] for each in first) / min(measured) - 1)


def best_of_any(measured: Sequence[float], number: int) -> float:
    """The same of `number` that are picked at random, on average."""
    picked = itertools.combinations(measured, number)
    return 100 * (fmean(min(some) for some in picked) / min(measured) - 1)


def test_pipelines_on_one_node() -> None:
    """Rates are of rows without one: their bubble and order are the product's."""
    assert spread()[2] <= 0.11
    row = next(row for row in SINGLE if row.pp == 4 and row.micro_batches >= 4)
    micro_batches = row.micro_batches
    assert ideal_bubble(row.pipeline) == pytest.approx(3 / (micro_batches + 3))


@pytest.mark.parametrize(("gpus", "order"), [(64, 0.9), (256, 0.55)])
def test_layouts_of_vtrain_from_one_node(gpus: int, order: float) -> None:
    some = cases(f"vTrain, {gpus} GPUs")
    assert len(some) == {64: 26, 256: 15}[gpus]
    assert mean_error(some) <= 12
    told, measured = of_both(f"vTrain, {gpus} GPUs")
    assert rank_agreement(told, measured, apart=0.05) >= order
    assert best_of(told, measured, 3) <= 5


def test_layouts_of_bigscience_with_three_rows() -> None:
    names = [name for name in groups() if name.startswith("BigScience")]
    assert len(names) == 4
    for name in names:
        assert mean_error(cases(name)) <= 8, name
        assert best_of(*of_both(name), 3) <= 3, name


def test_ranges_of_layouts_hold_what_they_claim() -> None:
    some = [case for name in groups() for case in cases(name) if not case.is_known]
    assert 0.8 <= fmean(case.told.low <= case.measured_s <= case.told.high for case in some) <= 0.97


def test_memory_of_layouts_is_in_their_order() -> None:
    """No bar: what the framework itself takes is not predicted. Layouts of one model, in order."""
    assert not is_computed_again(SINGLE)
    assert is_computed_again(BIG)
    rows = [row for row in BIG if row.memory_gb and row.day == "02-25"]
    told = [memory_gb(row, again=True) for row in rows]
    assert rank_agreement(told, [row.memory_gb or 0.0 for row in rows], apart=0.05) > 0.8
    assert all(0.5 < a / (row.memory_gb or 1) < 1.1 for a, row in zip(told, rows, strict=True))
    out = [memory_gb(row, again=True) for row in BIG if row.does_not_fit and row.day == "02-25"]
    assert len(out) == 3
    assert min(out) > 0.95 * MEMORY_GB


def memory_table() -> ErrorTable:
    rows = [row for row in BIG if row.memory_gb or row.does_not_fit]
    told = [memory_gb(row, again=True) for row in rows]
    pairs = [(a, row.memory_gb) for a, row in zip(told, rows, strict=True) if row.memory_gb]
    errors = [100 * (told / measured - 1) for told, measured in pairs]
    return ErrorTable(
        "Memory of layouts, BigScience",
        ["layout", "layers × hidden", "measured", "plan"],
        [
            [
                row.words,
                f"{row.layers} × {row.hidden}, {row.heads} heads",
                f"{row.memory_gb:.0f} GB" if row.memory_gb else "did not fit",
                f"{a:.0f}",
            ]
            for a, row in zip(told, rows, strict=True)
        ],
        f"No bar: mean error {fmean(errors):+.0f} %. What the framework takes is not predicted.",
    )


def tables() -> list[ErrorTable]:
    """The tables of the page."""
    judged, rows = [], []
    for group in groups():
        told, measured = of_both(group)
        alike = statistics.median(measured)
        judged += [
            judge_time(group, each.words, each.measured_s, each.told, alike / each.measured_s - 1)
            for each in cases(group)
            if not each.is_known
        ]
        losses = best_of(told, measured, 1), best_of(told, measured, 3), best_of_any(measured, 3)
        order = f"{rank_agreement(told, measured, apart=0.05):.2f}"
        rows.append([group, f"{len(told)}", order, *(f"{loss:.1f}" for loss in losses)])
    title = "Layouts of transformers"
    header = ["", "rows", "order", "first", "best of 3", "any 3"]
    return [
        summary_table(title, judged, ["alike"], LAYOUTS),
        ErrorTable(f"{title}: the three that a plan names", header, rows, CHOICES),
        memory_table(),
    ]


def test_page_shows_these_layouts() -> None:
    """Made again: python -m tests.plan.layouts.test_layouts. Numbers of a search may differ in the
    last place."""
    number = re.compile(r"-?\d+\.?\d*")
    stored = str(read_measured([FILE]).tables)
    found = str(tables())
    assert number.sub("", stored) == number.sub("", found)
    values = [float(each) for each in number.findall(stored)]
    assert values == pytest.approx([float(each) for each in number.findall(found)], abs=1.01)


def test_choice_of_layouts() -> None:
    measured = [10.0, 11.0, 12.0, 20.0]
    assert rank_agreement([1, 2, 3, 4], measured, apart=0.05) == 1
    assert rank_agreement([4, 3, 2, 1], measured, apart=0.05) == -1
    assert rank_agreement([2, 1, 3, 4], measured, apart=0.1) == 1, "10 and 11 are alike"
    assert best_of([4, 3, 2, 1], measured, 1) == 100
    assert best_of([4, 3, 2, 1], measured, 3) == pytest.approx(10)
    assert best_of_any(measured, 3) == pytest.approx(2.5)


if __name__ == "__main__":
    content = msgspec.json.encode(Measured(tables=tables()))
    FILE.write_bytes(msgspec.json.format(content, indent=1) + b"\n")
