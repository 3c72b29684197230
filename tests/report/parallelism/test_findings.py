"""The findings of a parallelism study, from records with known numbers."""

from pathlib import Path

import pytest

from phalanx.records.schema import Outcome
from phalanx.report.findings import (
    AccuracyDifference,
    Agreement,
    FastestBySize,
    FastestFinding,
    Finding,
    Speed,
)
from phalanx.report.parallelism.findings import findings, headline
from phalanx.report.parallelism.study_data import ParallelismStudyData, read_study_data
from tests.report.parallelism.made_parallelism import Made, failed, make, schemes


def told(data: ParallelismStudyData) -> dict[str, list[str]]:
    """Sentences by the title of their topic."""
    return {
        topic.title: [f"{s.label}: {s.text}" for s in topic.sentences] for topic in findings(data)
    }


def found(data: ParallelismStudyData, title: str, label: str) -> tuple[Finding, ...]:
    """The findings of a topic about one model."""
    (topic,) = (topic for topic in findings(data) if topic.title == title)
    return next(s.findings for s in topic.sentences if s.label == label)


def test_the_headline_is_the_largest_speed_up(made: ParallelismStudyData) -> None:
    text = headline(made)
    assert text.startswith(
        "The ring all-reduce on 2 ranks trains the MLP "
        "1.25\N{MULTIPLICATION SIGN} (1.14\N{EN DASH}1.38)"
    )


def test_who_wins_where(made: ParallelismStudyData) -> None:
    two, four = found(made, "Which scheme wins", "MLP")
    assert isinstance(two, FastestFinding) and isinstance(four, FastestFinding)
    assert (two.where, four.where) == ("on 2 ranks", "on 4 ranks")
    for finding in (two, four):
        assert (finding.subject, finding.n, finding.rivals) == ("the ring all-reduce", 3, ())
        assert finding.facts.startswith(
            "0.0320 s per epoch, 1.25\N{MULTIPLICATION SIGN} (1.14\N{EN DASH}1.38)"
        )


def test_memory_and_bytes_beside_their_formulas(made: ParallelismStudyData) -> None:
    least, memory, sent = found(made, "Memory and bytes", "MLP")
    assert isinstance(least, str)
    assert least.startswith("on 4 ranks ZeRO 3 keeps the least, 977 KB a rank against 3.81 MB")
    assert "(25 %), by the formula 16\N{GREEK CAPITAL LETTER PSI}/p" in least
    assert isinstance(memory, Agreement) and isinstance(sent, Agreement)
    assert (memory.num, memory.n, memory.exceptions) == (4, 4, ())
    assert (sent.num, sent.n) == (2, 4)
    assert sent.exceptions == tuple(
        f"zero 3, {ranks} ranks \N{NOT EQUAL TO} (+33.3 %)" for ranks in (2, 4)
    )


def test_who_makes_the_same_update_ends_with_the_same_loss(made: ParallelismStudyData) -> None:
    same, drift = found(made, "The same mathematics", "MLP")
    assert isinstance(same, Agreement) and isinstance(drift, AccuracyDifference)
    assert (same.num, same.n, same.exceptions) == (4, 4, ())
    assert drift.subject == "the asynchronous parameter server on 4 ranks"
    assert (drift.verdict, drift.interval) == ("unclear", None), "a single seed"
    assert drift.estimate == pytest.approx(0.0009, abs=1e-5)
    assert drift.facts.endswith("+4.0 %")


def test_from_scratch_up_to_many_workers(made: ParallelismStudyData) -> None:
    best, most, *_ = found(made, "From scratch, up to many workers", "ring")
    assert isinstance(best, FastestFinding) and isinstance(most, Speed)
    assert (best.where, best.subject, best.rivals) == ("with 64 hidden units", "one process", ())
    assert most.interval is not None
    assert "128 workers" in most.subject and most.verdict == "lower"
    slower = most.interval.inverse
    assert (slower.low, slower.estimate, slower.high) == pytest.approx((24, 26.4, 29.04), rel=1e-3)


def test_crossing_points_of_the_algorithms(made: ParallelismStudyData) -> None:
    (finding,) = found(made, "All-reduce on messages", "4 ranks")
    assert finding == FastestBySize(ranges=(("naive", 4, 2**16), ("ring", 2**20, 2**24)))


def test_what_failed_is_named(made: ParallelismStudyData) -> None:
    assert told(made)["Not completed"] == [
        ": 2 of 20 runs: 1 failed and 1 missing (mlp-gloo-4-s0 and mlp-shared-4-s0).",
        "mlp-gloo-4-s0: rank 2: RuntimeError: </script><b>lost</b> & gone",
    ]


def test_a_study_of_failures_says_so(tmp_path: Path) -> None:
    data = read_study_data(make(tmp_path / "s", [failed()]))
    assert headline(data) == "No run of this study was completed yet"
    assert set(told(data)) == {"Not completed"}


def test_without_a_sequential_run_there_is_no_speed_up(tmp_path: Path) -> None:
    runs = [run for run in schemes() if run.strategy != "sequential"]
    data = read_study_data(make(tmp_path / "s", runs))
    best = found(data, "Which scheme wins", "MLP")[0]
    assert isinstance(best, FastestFinding)
    assert "sequential" not in best.facts
    assert "ways of splitting a training" in headline(data)


def test_where_nothing_beats_one_process_it_is_said(tmp_path: Path) -> None:
    slow = Made(name="slow", strategy="mpi", ranks=2, step_s=1.0)
    alone = Made(name="alone", strategy="sequential", waiting=0.0)
    data = read_study_data(make(tmp_path / "s", [alone, slow]))
    assert headline(data) == (
        "No way of splitting the training is significantly faster than one thread"
    )


def test_an_interrupted_run_is_in_no_comparison(tmp_path: Path) -> None:
    runs = [
        Made(name="alone", strategy="sequential", waiting=0.0),
        Made(name="cut", strategy="mpi", ranks=2, outcome=Outcome(status="interrupted")),
    ]
    data = read_study_data(make(tmp_path / "s", runs))
    assert [cell.scheme for cell in data.models[0].cells] == ["sequential"]
    assert "1 interrupted (cut)" in told(data)["Not completed"][0]


def test_schemes_of_one_speed_are_not_ranked(tmp_path: Path) -> None:
    runs = [Made(name="alone", strategy="sequential", waiting=0.0)]
    runs += [
        Made(name=name, strategy="mpi", ranks=2, options={"all_reduce": name}, step_s=step_s)
        for name, step_s in (("ring", 2.0e-3), ("tree", 2.05e-3), ("halving", 1.95e-3))
    ]
    data = read_study_data(make(tmp_path / "s", runs))
    (finding,) = found(data, "Which scheme wins", "MLP")
    assert isinstance(finding, FastestFinding)
    assert (finding.where, finding.n, len(finding.rivals)) == ("on 2 ranks", 3, 2)
    assert "is significantly faster than one" in headline(data)
