"""Findings about collectives: their numbers, and when none is made."""

from pathlib import Path

import pytest

from phalanx.records.schema import Outcome
from phalanx.report.collectives.comparison import (
    CollectiveResults,
    collective_results,
    fastest_ranges,
    path_comparisons,
)
from phalanx.report.collectives.findings import (
    against_rest,
    by_library,
    crossings,
    findings,
    headline,
    private_tensors,
)
from phalanx.report.collectives.folder import read_benches
from phalanx.report.collectives.page import key_figures
from phalanx.report.findings import FastestBySize, finding_text
from tests.report.collectives.made_bench import MEDIANS, make_bench


def only_results(folder: Path) -> CollectiveResults:
    (results,) = collective_results(read_benches(folder))
    return results


def test_ours_against_the_fastest_of_the_others(tmp_path: Path) -> None:
    results = only_results(make_bench(tmp_path / "b"))
    gains = [round(comparison.gain, 2) for comparison in path_comparisons(results)]
    assert gains == [0.8, 8.0, 5.0, 5.0]
    found = against_rest([results])
    assert [f.where for f in found] == ["at 4 B", "at 64 KB", "at 1 MB", "at 16 MB"]
    assert {(f.subject, f.against, f.n) for f in found} == {("phalanx window", "Open MPI", 4)}
    assert [f.verdict for f in found] == ["unclear", "higher", "higher", "higher"]
    assert [f.interval.estimate for f in found if f.interval] == pytest.approx(gains)
    low, high = 4.89, 13.08
    assert found[1].interval is not None
    assert (found[1].interval.low, found[1].interval.high) == pytest.approx((low, high), abs=0.01)
    assert found[1].facts == "1.00 µs against 8.00 µs"


def test_the_key_figure_has_its_interval(tmp_path: Path) -> None:
    """It was a bare ratio; what its interval does not tell apart is shown as a time."""
    ours = only_results(make_bench(tmp_path / "b"))
    barrier = only_results(make_bench(tmp_path / "barrier", collectives=("barrier",)))
    figure, apart = key_figures([ours, barrier])
    assert figure.value == "5.00×"
    assert figure.beside == "3.22\N{EN DASH}7.76; 12.0 µs against 60.0 µs"
    assert apart.value == "500 ns"
    assert apart.beside.startswith("400 ns with Open MPI")


def test_who_wins_where(tmp_path: Path) -> None:
    results = only_results(make_bench(tmp_path / "b"))
    assert fastest_ranges(results) == [(None, 4, 4), ("phalanx window", 2**16, 2**24)]
    slow = {**MEDIANS, "window": (4e-6, 1e-6, 12e-6, 400e-6)}
    results = only_results(make_bench(tmp_path / "slow", medians=slow))
    assert crossings(results) == FastestBySize(
        ranges=(("Open MPI", 4, 4), ("phalanx window", 2**16, 2**24))
    )


def test_paths_of_one_speed_are_not_ranked(tmp_path: Path) -> None:
    medians = {"phalanx": (1e-3,) * 4, "torch": (1.02e-3,) * 4, "gloo": (1.01e-3,) * 4}
    results = only_results(make_bench(tmp_path / "b", medians=medians))
    assert crossings(results) == FastestBySize(ranges=((None, 4, 2**24),))
    finding = private_tensors(results)
    assert finding is not None
    assert finding.verdict == "unclear"
    assert finding.where == "at 4 B"


def test_one_winner(tmp_path: Path) -> None:
    medians = {"phalanx": (1e-6,) * 4, "gloo": (1e-3,) * 4}
    finding = crossings(only_results(make_bench(tmp_path / "b", medians=medians)))
    assert finding is not None
    assert [path for path, _, _ in finding.ranges] == ["phalanx"]
    assert "at every size" in finding_text(finding)


def test_one_path_has_nobody_to_win_against(tmp_path: Path) -> None:
    results = only_results(make_bench(tmp_path / "b", medians={"gloo": (1e-3,) * 4}))
    assert crossings(results) is None
    assert against_rest([results]) == []
    assert key_figures([results]) == []
    assert headline([results]) == "All-reduce of 16 MB on 2 ranks: 1.00 ms with Gloo"


def test_unmodified_scripts(tmp_path: Path) -> None:
    finding = private_tensors(only_results(make_bench(tmp_path / "b")))
    assert finding is not None and finding.interval is not None
    assert (finding.where, finding.against, finding.n) == ("at 16 MB", "Gloo", 4)
    assert finding.interval.estimate == pytest.approx(8e-3 / 900e-6)
    assert finding.verdict == "higher"


def test_headline(tmp_path: Path) -> None:
    results = only_results(make_bench(tmp_path / "b"))
    assert headline([results]).startswith(
        "All-reduce of 1 MB on 2 ranks: phalanx window is "
        "5.00\N{MULTIPLICATION SIGN} (3.40\N{EN DASH}7.36)"
    )
    assert headline([]) == "Nothing to compare was measured yet"


def test_of_several_libraries_the_hardest_rival_is_in_the_headline(tmp_path: Path) -> None:
    make_bench(tmp_path / "openmpi")
    faster = {**MEDIANS, "mpi": (1e-6, 2e-6, 24e-6, 1e-3)}
    make_bench(tmp_path / "impi", medians=faster, mpi="Intel MPI 2021.18")
    found = collective_results(read_benches(tmp_path))
    assert [s.title for s in found] == [
        "All-reduce, Intel MPI 2021.18",
        "All-reduce, Open MPI 5.0.11",
    ]
    text = headline(found)
    assert "2.00\N{MULTIPLICATION SIGN} (1.29\N{EN DASH}3.10)" in text
    assert text.endswith("Intel MPI")


def test_right_and_wrong_results(tmp_path: Path) -> None:
    for name, wrong, text in (
        ("right", {}, "All results of 96 timed calls were right, every element on every rank."),
        ("wrong", {"gloo": 7}, "Gloo at 16 MB: 7 wrong elements."),
    ):
        measures = read_benches(make_bench(tmp_path / name, wrong=wrong))
        topics = {t.title: t for t in findings(collective_results(measures), measures)}
        assert [s.text for s in topics["Correctness"].sentences] == [text]


def test_what_is_missing_and_what_failed_is_said(tmp_path: Path) -> None:
    failed = Outcome(status="failed", error="rank 1 is gone")
    measures = read_benches(
        make_bench(tmp_path / "b", obstacles={"nccl": "there is no GPU"}, outcome=failed)
    )
    topics = {t.title: t for t in findings(collective_results(measures), measures)}
    assert [(s.label, s.text) for s in topics["Not measured"].sentences] == [
        ("nccl", "All-reduce: there is no GPU.")
    ]
    assert topics["Not completed"].sentences[0].text == "Failed: rank 1 is gone."


def test_a_barrier_has_no_sizes_to_speak_of(tmp_path: Path) -> None:
    results = only_results(make_bench(tmp_path / "b", collectives=("barrier",)))
    (finding,) = against_rest([results])
    assert (finding.where, finding.verdict) == ("", "unclear")
    assert crossings(results) is None


def test_of_several_libraries_the_hardest_is_told_at_each_size(tmp_path: Path) -> None:
    make_bench(tmp_path / "openmpi", obstacles={"nccl": "no GPU"})
    faster = {**MEDIANS, "mpi": (0.5e-6, 9e-6, 24e-6, 3e-3)}
    make_bench(
        tmp_path / "impi", medians=faster, mpi="Intel MPI 2021.18", obstacles={"nccl": "no GPU"}
    )
    measures = read_benches(tmp_path)
    (group,) = by_library(collective_results(measures))
    found = against_rest(group)
    assert [f.against for f in found] == ["Open MPI", "Open MPI", "Intel MPI", "Open MPI"]
    estimates = [f.interval.estimate for f in found if f.interval]
    assert estimates == pytest.approx([0.8, 8.0, 2.0, 5.0])
    topics = {t.title: t for t in findings(collective_results(measures), measures)}
    assert [s.label for s in topics["Phalanx against the rest"].sentences] == [
        "All-reduce, 2 ranks, 2 libraries"
    ]
    # What holds for every run is said once.
    assert [s.text for s in topics["Not measured"].sentences] == ["All-reduce: no GPU."]


def test_a_machine_that_was_not_quiet(tmp_path: Path) -> None:
    def told(folder: Path) -> list[str]:
        measures = read_benches(folder)
        topics = {t.title: t for t in findings(collective_results(measures), measures)}
        return [s.text for s in topics["Disturbance"].sentences] if "Disturbance" in topics else []

    assert told(make_bench(tmp_path / "quiet", preempted=10)) == []
    (text,) = told(make_bench(tmp_path / "busy", preempted=1000))
    assert text.startswith(
        "Ranks lost their core 500 times per second: other processes were running"
    )
    assert told(make_bench(tmp_path / "crowded", preempted=1000, ranks=3)) == []


def test_calls_that_are_seen_to_be_slower_are_said_to_be(tmp_path: Path) -> None:
    slow = {**MEDIANS, "window": (4e-6, 64e-6, 600e-6, 20e-3)}
    found = against_rest([only_results(make_bench(tmp_path / "b", medians=slow))])
    assert found[0].verdict == "lower"
    assert found[0].interval is not None
    assert found[0].interval.inverse.estimate == pytest.approx(10)
