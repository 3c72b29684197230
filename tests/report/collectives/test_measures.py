"""From the events of ranks to points."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from phalanx.errors import UserError
from phalanx.records.files import rank_file
from phalanx.records.schema import Outcome
from phalanx.report.cells import Row
from phalanx.report.collectives import holds_benches, quantile, read_collectives, slowest
from tests.report.collectives.made_bench import MEDIANS, make_bench


def test_a_call_takes_as_long_as_its_slowest_rank() -> None:
    assert slowest([[1.0, 5.0, 2.0], [3.0, 4.0]]) == (3.0, 5.0)


def the(rows: Sequence[Row], path: str, num_bytes: int) -> Row:
    return next(row for row in rows if (row["path_option"], row["bytes"]) == (path, num_bytes))


def test_points_of_a_bench(tmp_path: Path) -> None:
    data = read_collectives(make_bench(tmp_path / "b"))
    (run,) = data.runs
    assert run["status"] == "completed"
    assert len(data.rows) == 4 * 4
    row = the(data.rows, "mpi", 2**20)
    assert row["path"] == "Open MPI"
    assert row["calls"] == 6
    assert row["median_s"] == pytest.approx(60e-6)
    assert row["median_us_low"] == pytest.approx(54)
    assert row["median_us_high"] == pytest.approx(72)
    assert row["algbw"] == pytest.approx(2**20 / 60e-6 / 1e9)
    assert row["busbw"] == pytest.approx(2**20 / 60e-6 / 1e9)
    floor_s = 4 * 2**20 / 400e9 + 0.4e-6
    assert row["times_floor"] == pytest.approx(60e-6 / floor_s)
    assert run["_machine"].round_trip_s == pytest.approx(0.4e-6)


def test_the_99th_percentile_of_many_calls() -> None:
    assert quantile([float(number) for number in range(1, 201)], 0.99) == 198.0


def test_wrong_elements_are_added_up(tmp_path: Path) -> None:
    rows = read_collectives(make_bench(tmp_path / "b", wrong={"gloo": 7})).rows
    assert {row["path_option"]: row["wrong"] for row in rows if row["wrong"]} == {"gloo": 7}


def test_a_round_that_a_rank_did_not_finish_is_left_out(tmp_path: Path) -> None:
    folder = make_bench(tmp_path / "b", outcome=Outcome(status="interrupted"))
    lines = rank_file(folder, 1).read_text().splitlines(keepends=True)
    rank_file(folder, 1).write_text("".join(lines[:-2]) + '{"event":"cal')
    data = read_collectives(folder)
    assert the(data.rows, "gloo", 2**24)["calls"] == 3
    assert [run["status"] for run in data.runs] == ["interrupted"]


@pytest.mark.parametrize(("times", "told"), [(0.5, "ends before"), (0, "is empty"), (2, "2 times")])
def test_half_the_records_of_a_completed_bench_are_none(
    tmp_path: Path, times: float, told: str
) -> None:
    folder = make_bench(tmp_path / "b")
    lines = rank_file(folder, 1).read_bytes().splitlines(keepends=True) * 2
    rank_file(folder, 1).write_bytes(b"".join(lines[: int(len(lines) * times / 2)]))
    with pytest.raises(UserError, match=f"is damaged: rank-1.jsonl .*{told}"):
        read_collectives(folder)


def test_obstacles_are_told_once(tmp_path: Path) -> None:
    folder = make_bench(
        tmp_path / "b", collectives=("all_reduce", "broadcast"), obstacles={"nccl": "no GPU"}
    )
    told = [note for note in read_collectives(folder).notes if "Not measured" in note[1]]
    assert told == [("nccl", "Not measured: all-reduce: no GPU.")]


def test_several_beside_each_other_and_a_damaged_one(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make_bench(tmp_path / name)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "bench.json").write_text("{")
    assert holds_benches(tmp_path)
    runs = read_collectives(tmp_path).runs
    assert [run["status"] for run in runs] == ["completed", "completed", "damaged"]
    with pytest.raises(UserError, match=r"bench\.json is damaged"):
        read_collectives(tmp_path / "c")


def test_no_bench(tmp_path: Path) -> None:
    assert not holds_benches(tmp_path)
    with pytest.raises(UserError, match=r"holds no bench\.json"):
        read_collectives(tmp_path)


def test_made_medians_are_what_is_read(tmp_path: Path) -> None:
    for row in read_collectives(make_bench(tmp_path / "b")).rows:
        assert row["median_s"] in [pytest.approx(s) for s in MEDIANS[row["path_option"]]]
