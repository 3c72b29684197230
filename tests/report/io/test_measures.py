"""From records to rates, waits and utilisation."""

from pathlib import Path

import pytest

from phalanx.errors import UserError
from phalanx.records.schema import Outcome
from phalanx.report.io.comparison import compare_loaders, is_cold
from phalanx.report.io.folder import read_io_measure
from phalanx.report.io.measures import IoMeasure, IoPoint
from tests.report.io.made_io import BATCH_S, COMPUTE_S, RUNS, SAMPLES, STEPS, make_io


def the(measure: IoMeasure, **wanted: object) -> IoPoint:
    """The only point flat out with these properties of its cell."""
    (found,) = [
        point
        for point in measure.flat
        if all(getattr(point.cell, name) == value for name, value in wanted.items())
    ]
    return found


def test_medians_without_the_warm_up(tmp_path: Path) -> None:
    measure = read_io_measure(make_io(tmp_path / "io"))
    point = the(measure, format="tar", loader="phalanx", cache="warm")
    assert len(point.epochs) == RUNS
    batch_s = BATCH_S["tar", "phalanx"]
    assert point.total_s == pytest.approx(STEPS * batch_s * 1.02)
    assert point.samples_per_s == pytest.approx(SAMPLES / (STEPS * batch_s * 1.02))
    paced = next(p for p in measure.paced if p.cell == point.cell)
    # Only the first batch is waited for.
    total_s = batch_s * 1.02 + STEPS * COMPUTE_S
    assert paced.utilisation == pytest.approx(STEPS * COMPUTE_S / total_s)
    assert paced.stalls == 1
    assert paced.first_s == pytest.approx(batch_s * 1.02)


def test_the_slowest_rank_ends_an_epoch(tmp_path: Path) -> None:
    measure = read_io_measure(make_io(tmp_path / "io", ranks=(1, 3)))
    one, three = (
        the(measure, format="tar", loader="phalanx", cache="warm", ranks=n) for n in (1, 3)
    )
    assert three.total_s == pytest.approx(1.2 * one.total_s)
    assert three.samples_per_s == pytest.approx(3 * SAMPLES / (1.2 * one.total_s))


def test_a_duel_is_of_epochs_of_one_round(tmp_path: Path) -> None:
    measure = read_io_measure(make_io(tmp_path / "io"))
    ours = the(measure, format="npy", loader="phalanx", cache="warm")
    theirs = the(measure, format="npy", loader="torch", cache="warm")
    found = compare_loaders(ours, theirs)
    assert (found.low, found.estimate, found.high) == pytest.approx((5.0, 5.0, 5.0))


@pytest.mark.parametrize(("resident", "cold"), [(0.0, True), (0.5, False), (None, None)])
def test_whether_it_was_cold(tmp_path: Path, resident: float | None, cold: bool | None) -> None:
    measure = read_io_measure(make_io(tmp_path / "io", resident_when_cold=resident))
    assert is_cold(the(measure, format="npy", loader="phalanx", cache="cold")) is cold


def test_a_round_that_was_cut_short_on_a_rank_is_none(tmp_path: Path) -> None:
    failed = Outcome(status="failed", error="made")
    folder = make_io(tmp_path / "io", ranks=(2,), caches=("warm",), outcome=failed)
    path = folder / "ranks-2" / "rank-1.jsonl"
    path.write_bytes(b"\n".join(path.read_bytes().splitlines()[:3]) + b"\n")
    measure = read_io_measure(folder)
    (point,) = measure.points
    assert len(point.epochs) == 2


@pytest.mark.parametrize(("times", "told"), [(0.5, "ends before"), (0, "is empty"), (2, "2 times")])
def test_half_the_records_of_a_completed_measurement_are_none(
    tmp_path: Path, times: float, told: str
) -> None:
    folder = make_io(tmp_path / "io", ranks=(1, 2))
    path = folder / "ranks-2" / "rank-1.jsonl"
    lines = path.read_bytes().splitlines(keepends=True) * 2
    path.write_bytes(b"".join(lines[: int(len(lines) * times / 2)]))
    with pytest.raises(UserError, match=f"is damaged: ranks-2/rank-1.jsonl .*{told}"):
        read_io_measure(folder)


def test_damaged_records_are_named(tmp_path: Path) -> None:
    folder = make_io(tmp_path / "io")
    (folder / "ranks-1" / "rank-0.jsonl").write_text("{}\n")
    with pytest.raises(UserError, match="line 1 is not a record"):
        read_io_measure(folder)
    with pytest.raises(UserError, match=r"holds no io\.json"):
        read_io_measure(tmp_path)
