"""Measured layouts of transformers beside predictions by the product's pipelines and sums.

Which rows of one node calibrate (of four samples and more, where launches do not hide what kernels
take) was chosen in sight of the rows of 64 and 256 GPUs; nothing is fitted on them.
`python -m tests.plan.layouts.test_layouts` writes the file that the page of validation is made of.
"""

import statistics
from functools import cache
from pathlib import Path
from statistics import fmean

import msgspec
import numpy as np
import pytest

from phalanx.parallel.pipeline.timeline import ideal_bubble
from phalanx.plan.machine import read_machine
from phalanx.plan.validation import (
    CaseResult,
    ErrorTable,
    Measured,
    best_of,
    rank_agreement,
    read_measured,
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
def cases(group: str) -> list[CaseResult]:
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
        CaseResult(
            model=row.words,
            case=group,
            predicted_s=ratio * told[number],
            low_s=low * ratio * told[number],
            high_s=high * ratio * told[number],
            measured_s=measured[number],
            perfect_s=statistics.median(measured),
            is_known=number in known,
        )
        for number, row in enumerate(rows)
    ]


def mean_error(some: list[CaseResult]) -> float:
    """Percent, as a page shows it: with one decimal."""
    return round(100 * fmean(abs(case.error) for case in some if not case.is_known), 1)


def loss_of_three(some: list[CaseResult]) -> float:
    """By how many percent the best of the three named first is slower than the best of all."""
    return 100 * best_of([c.predicted_s for c in some], [c.measured_s for c in some], 3)


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
    told, measured = [c.predicted_s for c in some], [c.measured_s for c in some]
    assert rank_agreement(told, measured, apart=0.05) >= order
    assert loss_of_three(some) <= 5


def test_layouts_of_bigscience_with_three_rows() -> None:
    names = [name for name in groups() if name.startswith("BigScience")]
    assert len(names) == 4
    for name in names:
        assert mean_error(cases(name)) <= 8, name
        assert loss_of_three(cases(name)) <= 3, name


def test_ranges_of_layouts_hold_what_they_claim() -> None:
    some = [case for name in groups() for case in cases(name) if not case.is_known]
    assert 0.8 <= fmean(case.low_s <= case.measured_s <= case.high_s for case in some) <= 0.97


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


def test_page_shows_these_layouts() -> None:
    """Made again: python -m tests.plan.layouts.test_layouts"""
    found = [case for name in groups() for case in cases(name)]
    stored, tables = read_measured([FILE]).layouts, read_measured([FILE]).tables
    assert tables == [memory_table()]
    assert [(case.case, case.model) for case in stored] == [(c.case, c.model) for c in found]
    told = [case.predicted_s for case in found]
    assert [case.predicted_s for case in stored] == pytest.approx(told, rel=1e-3)


if __name__ == "__main__":
    listed = [case for name in groups() for case in cases(name)]
    content = Measured(layouts=listed, tables=[memory_table()])
    FILE.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")
