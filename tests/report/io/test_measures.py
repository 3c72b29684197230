"""From records to rates, waits and utilisation."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from phalanx.errors import UserError
from phalanx.records.schema import Outcome
from phalanx.report.cells import Row
from phalanx.report.loading import compare_loaders, flat, paced, read_io_rows, ways_of
from tests.report.io.made_io import BATCH_S, COMPUTE_S, RUNS, SAMPLES, STEPS, make_io
from tests.report.made_view import read


def ways(folder: Path) -> list[Row]:
    return ways_of(read(folder)[1][0])


def the(found: Sequence[Row], **wanted: object) -> Row:
    """The only way flat out with these properties."""
    (way,) = [
        way
        for way in flat(found)
        if all(getattr(way["_way"], name) == value for name, value in wanted.items())
    ]
    return way


def test_medians_without_the_warm_up(tmp_path: Path) -> None:
    found = ways(make_io(tmp_path / "io"))
    way = the(found, format="tar", loader="phalanx", cache="warm")
    times_s = way["_cell"].values("total_s")
    assert len(times_s) == RUNS
    batch_s = BATCH_S["tar", "phalanx"]
    assert sorted(times_s)[1] == pytest.approx(STEPS * batch_s * 1.02)
    assert way["samples_per_s"] == pytest.approx(SAMPLES / (STEPS * batch_s * 1.02))
    with_compute = next(other for other in paced(found) if other["_way"] == way["_way"])
    # Only the first batch is waited for.
    total_s = batch_s * 1.02 + STEPS * COMPUTE_S
    assert with_compute["utilisation"] == pytest.approx(STEPS * COMPUTE_S / total_s)
    assert with_compute["stalls"] == 1
    assert with_compute["first_ms"] == pytest.approx(1e3 * batch_s * 1.02)


def test_the_slowest_rank_ends_an_epoch(tmp_path: Path) -> None:
    found = ways(make_io(tmp_path / "io", ranks=(1, 3)))
    one, three = (the(found, format="tar", loader="phalanx", cache="warm", ranks=n) for n in (1, 3))
    longer = [1.2 * time_s for time_s in one["_cell"].values("total_s")]
    assert three["_cell"].values("total_s") == pytest.approx(longer)
    assert three["samples_per_s"] == pytest.approx(3 / 1.2 * one["samples_per_s"])


def test_a_duel_is_of_epochs_of_one_round(tmp_path: Path) -> None:
    found = ways(make_io(tmp_path / "io"))
    ours = the(found, format="npy", loader="phalanx", cache="warm")
    theirs = the(found, format="npy", loader="torch", cache="warm")
    gain = compare_loaders(ours, theirs)
    assert (gain.low, gain.estimate, gain.high) == pytest.approx((5.0, 5.0, 5.0))


@pytest.mark.parametrize(
    ("resident", "words"),
    [(0.0, "no page of the files was cached"), (0.5, "up to 50 %"), (None, "not be verified")],
)
def test_whether_it_was_cold(tmp_path: Path, resident: float | None, words: str) -> None:
    content, _ = read(make_io(tmp_path / "io", resident_when_cold=resident))
    assert [text for _, text in content.conditions if words in text]


def test_a_round_that_was_cut_short_on_a_rank_is_none(tmp_path: Path) -> None:
    failed = Outcome(status="failed", error="made")
    folder = make_io(tmp_path / "io", ranks=(2,), caches=("warm",), outcome=failed)
    path = folder / "ranks-2" / "rank-1.jsonl"
    path.write_bytes(b"\n".join(path.read_bytes().splitlines()[:3]) + b"\n")
    (way,) = ways(folder)
    assert len(way["_cell"].values("total_s")) == 2


@pytest.mark.parametrize(("times", "told"), [(0.5, "ends before"), (0, "is empty"), (2, "2 times")])
def test_half_the_records_of_a_completed_measurement_are_none(
    tmp_path: Path, times: float, told: str
) -> None:
    folder = make_io(tmp_path / "io", ranks=(1, 2))
    path = folder / "ranks-2" / "rank-1.jsonl"
    lines = path.read_bytes().splitlines(keepends=True) * 2
    path.write_bytes(b"".join(lines[: int(len(lines) * times / 2)]))
    with pytest.raises(UserError, match=f"is damaged: ranks-2/rank-1.jsonl .*{told}"):
        read_io_rows(folder)


def test_damaged_records_are_named(tmp_path: Path) -> None:
    folder = make_io(tmp_path / "io")
    (folder / "ranks-1" / "rank-0.jsonl").write_text("{}\n")
    with pytest.raises(UserError, match="line 1 is not a record"):
        read_io_rows(folder)
    with pytest.raises(UserError, match=r"holds no io\.json"):
        read_io_rows(tmp_path)
