"""Sentences about collectives: what they say, and what they must not say."""

from pathlib import Path

from phalanx.records.schema import Outcome
from phalanx.report.collectives.comparison import (
    CollectiveResults,
    collective_results,
    fastest_ranges,
    path_comparisons,
)
from phalanx.report.collectives.findings import (
    best_against_rest,
    crossings,
    findings,
    headline,
    private_tensors,
)
from phalanx.report.collectives.folder import read_benches
from tests.report.collectives.made_bench import MEDIANS, make_bench


def only_results(folder: Path) -> CollectiveResults:
    (results,) = collective_results(read_benches(folder))
    return results


def test_ours_against_the_fastest_of_the_others(tmp_path: Path) -> None:
    results = only_results(make_bench(tmp_path / "b"))
    assert [round(comparison.gain, 2) for comparison in path_comparisons(results)] == [
        0.8,
        8.0,
        5.0,
        5.0,
    ]
    assert best_against_rest(results) == (
        "At 4 B phalanx window takes 500 ns, not told from Open MPI (400 ns); "
        "at 64 KB phalanx window takes 1.00 µs, 8.0 times (4.9 to 13.1) as fast as "
        "Open MPI (8.00 µs); "
        "at 1 MB phalanx window takes 12.0 µs, 5.0 times (3.1 to 8.2) as fast as "
        "Open MPI (60.0 µs); "
        "at 16 MB phalanx window takes 400 µs, 5.0 times (3.1 to 8.2) as fast as "
        "Open MPI (2.00 ms)."
    )


def test_who_wins_where(tmp_path: Path) -> None:
    results = only_results(make_bench(tmp_path / "b"))
    assert fastest_ranges(results) == [(None, 4, 4), ("phalanx window", 2**16, 2**24)]
    assert crossings(results) == (
        "The fastest is phalanx window from 64 KB to 16 MB; at 4 B it cannot be told."
    )
    slow = {**MEDIANS, "window": (4e-6, 1e-6, 12e-6, 400e-6)}
    results = only_results(make_bench(tmp_path / "slow", medians=slow))
    assert crossings(results) == (
        "The fastest is Open MPI at 4 B and phalanx window from 64 KB to 16 MB."
    )


def test_paths_of_one_speed_are_not_ranked(tmp_path: Path) -> None:
    medians = {"phalanx": (1e-3,) * 4, "torch": (1.02e-3,) * 4, "gloo": (1.01e-3,) * 4}
    results = only_results(make_bench(tmp_path / "b", medians=medians))
    assert crossings(results) == "Which path is the fastest can be told at no size."
    text = private_tensors(results)
    assert text is not None
    assert text.startswith("On backend mpi dist.all_reduce is not told from Gloo at 4 B, where ")


def test_one_winner(tmp_path: Path) -> None:
    medians = {"phalanx": (1e-6,) * 4, "gloo": (1e-3,) * 4}
    results = only_results(make_bench(tmp_path / "b", medians=medians))
    assert crossings(results) == "Phalanx is the fastest at every size."


def test_one_path_has_nobody_to_win_against(tmp_path: Path) -> None:
    results = only_results(make_bench(tmp_path / "b", medians={"gloo": (1e-3,) * 4}))
    assert crossings(results) is None
    assert best_against_rest(results) is None
    assert headline([results]) == "All-reduce of 16 MB on 2 ranks: 1.00 ms with Gloo"


def test_unmodified_scripts(tmp_path: Path) -> None:
    results = only_results(make_bench(tmp_path / "b"))
    assert private_tensors(results) == (
        "On backend mpi dist.all_reduce is 8.9 times (5.4 to 14.5) as fast as Gloo at 16 MB, where "
        "it gains least, and 50.0 times (30.6 to 81.8) as fast as Gloo at 64 KB, where it gains "
        "most."
    )


def test_headline(tmp_path: Path) -> None:
    results = only_results(make_bench(tmp_path / "b"))
    assert headline([results]) == (
        "All-reduce of 1 MB on 2 ranks: phalanx window is 5.0 times (3.4 to 7.4) as "
        "fast as Open MPI"
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
    assert headline(found).endswith("phalanx window is 2.0 times (1.3 to 3.1) as fast as Intel MPI")


def test_right_and_wrong_results(tmp_path: Path) -> None:
    for name, wrong, text in (
        ("right", {}, "All results of 96 timed calls were right, every element on every rank."),
        ("wrong", {"gloo": 7}, "Gloo of 16 MB: 7 wrong elements."),
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
    assert best_against_rest(results) == (
        "Phalanx window takes 500 ns, not told from Open MPI (400 ns)."
    )
    assert crossings(results) is None


def test_all_libraries_together(tmp_path: Path) -> None:
    make_bench(tmp_path / "openmpi", obstacles={"nccl": "no GPU"})
    faster = {**MEDIANS, "mpi": (0.5e-6, 9e-6, 24e-6, 3e-3)}
    make_bench(
        tmp_path / "impi", medians=faster, mpi="Intel MPI 2021.18", obstacles={"nccl": "no GPU"}
    )
    measures = read_benches(tmp_path)
    topics = {t.title: t for t in findings(collective_results(measures), measures)}
    (sentence,) = topics["All libraries together"].sentences
    assert sentence.label == "All-reduce, 2 ranks"
    assert sentence.text == (
        "At 4 B not told from Open MPI; at 64 KB 8.0 times (4.9 to 13.1) as fast as Open MPI; "
        "at 1 MB 2.0 times (1.2 to 3.3) as fast as Intel MPI; "
        "at 16 MB 5.0 times (3.1 to 8.2) as fast as Open MPI."
    )
    # What holds for every run is said once.
    assert [s.text for s in topics["Not measured"].sentences] == ["All-reduce: no GPU."]


def test_one_library_is_not_compared_with_itself(tmp_path: Path) -> None:
    measures = read_benches(make_bench(tmp_path / "b"))
    titles = {topic.title for topic in findings(collective_results(measures), measures)}
    assert "All libraries together" not in titles


def test_a_machine_that_was_not_quiet(tmp_path: Path) -> None:
    def told(folder: Path) -> list[str]:
        measures = read_benches(folder)
        topics = {t.title: t for t in findings(collective_results(measures), measures)}
        return [s.text for s in topics["Disturbance"].sentences] if "Disturbance" in topics else []

    assert told(make_bench(tmp_path / "quiet", preempted=10)) == []
    (text,) = told(make_bench(tmp_path / "busy", preempted=1000))
    assert text.startswith("Ranks lost their core 500 times a second: something else was at work")
    assert told(make_bench(tmp_path / "crowded", preempted=1000, ranks=3)) == []


def test_calls_that_are_seen_to_be_slower_are_said_to_be(tmp_path: Path) -> None:
    slow = {**MEDIANS, "window": (4e-6, 64e-6, 600e-6, 20e-3)}
    results = only_results(make_bench(tmp_path / "b", medians=slow))
    text = best_against_rest(results)
    assert text is not None
    assert "slower than Open MPI, which is 10.0 times (6.1 to 16.4) as fast" in text
