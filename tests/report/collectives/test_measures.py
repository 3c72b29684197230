"""From the events of ranks to points."""

from pathlib import Path

import pytest

from phalanx.errors import UserError
from phalanx.records.files import rank_file
from phalanx.records.schema import Outcome
from phalanx.report.collectives.folder import holds_benches, read_benches
from phalanx.report.collectives.measures import CollectivePoint, slowest
from tests.report.collectives.made_bench import MEDIANS, make_bench


def test_a_call_takes_as_long_as_its_slowest_rank() -> None:
    assert slowest([[1.0, 5.0, 2.0], [3.0, 4.0]]) == (3.0, 5.0)


def test_points_of_a_bench(tmp_path: Path) -> None:
    (measure,) = read_benches(make_bench(tmp_path / "b"))
    assert measure.status == "completed"
    assert len(measure.points) == 4 * 4
    point = next(p for p in measure.points if (p.path, p.num_bytes) == ("mpi", 2**20))
    assert point.label == "Open MPI"
    assert len(point.times_s) == 6
    assert point.median_s == pytest.approx(60e-6)
    assert point.minimum_s == pytest.approx(54e-6)
    assert point.p99_s == pytest.approx(72e-6)
    assert point.algorithm_bandwidth == pytest.approx(2**20 / 60e-6)
    assert point.bus_bandwidth == pytest.approx(2**20 / 60e-6)
    floor_s = 4 * 2**20 / 400e9 + 0.4e-6
    assert point.times_floor == pytest.approx(60e-6 / floor_s)
    assert measure.machine.round_trip_s == pytest.approx(0.4e-6)


def test_the_99th_percentile_of_many_calls() -> None:
    times_s = tuple(float(number) for number in range(1, 201))
    point = CollectivePoint(
        collective="all_reduce",
        path="mpi",
        label="MPI",
        ranks=2,
        count=1,
        num_bytes=4,
        times_s=times_s,
        wrong=0,
        floor=None,
    )
    assert point.p99_s == 198.0


def test_wrong_elements_are_added_up(tmp_path: Path) -> None:
    (measure,) = read_benches(make_bench(tmp_path / "b", wrong={"gloo": 7}))
    assert {p.path: p.wrong for p in measure.points if p.wrong} == {"gloo": 7}


def test_a_round_that_a_rank_did_not_finish_is_left_out(tmp_path: Path) -> None:
    folder = make_bench(tmp_path / "b", outcome=Outcome(status="interrupted"))
    lines = rank_file(folder, 1).read_text().splitlines(keepends=True)
    rank_file(folder, 1).write_text("".join(lines[:-2]) + '{"event":"cal')
    (measure,) = read_benches(folder)
    last = next(p for p in measure.points if (p.path, p.num_bytes) == ("gloo", 2**24))
    assert len(last.times_s) == 3
    assert measure.status == "interrupted"


@pytest.mark.parametrize(("times", "told"), [(0.5, "ends before"), (0, "is empty"), (2, "2 times")])
def test_half_the_records_of_a_completed_bench_are_none(
    tmp_path: Path, times: float, told: str
) -> None:
    folder = make_bench(tmp_path / "b")
    lines = rank_file(folder, 1).read_bytes().splitlines(keepends=True) * 2
    rank_file(folder, 1).write_bytes(b"".join(lines[: int(len(lines) * times / 2)]))
    with pytest.raises(UserError, match=f"is damaged: rank-1.jsonl .*{told}"):
        read_benches(folder)


def test_obstacles_are_told_once(tmp_path: Path) -> None:
    folder = make_bench(
        tmp_path / "b", collectives=("all_reduce", "broadcast"), obstacles={"nccl": "no GPU"}
    )
    (measure,) = read_benches(folder)
    assert [(o.label, o.reason) for o in measure.obstacles] == [("nccl", "no GPU")]


def test_several_beside_each_other_and_a_damaged_one(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make_bench(tmp_path / name)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "bench.json").write_text("{")
    assert holds_benches(tmp_path)
    measures = read_benches(tmp_path)
    assert [m.status for m in measures] == ["completed", "completed", "damaged"]
    with pytest.raises(UserError, match=r"bench\.json is damaged"):
        read_benches(tmp_path / "c")


def test_no_bench(tmp_path: Path) -> None:
    assert not holds_benches(tmp_path)
    with pytest.raises(UserError, match=r"holds no bench\.json"):
        read_benches(tmp_path)


def test_made_medians_are_what_is_read(tmp_path: Path) -> None:
    (measure,) = read_benches(make_bench(tmp_path / "b"))
    for point in measure.points:
        assert point.median_s in [pytest.approx(s) for s in MEDIANS[point.path]]
