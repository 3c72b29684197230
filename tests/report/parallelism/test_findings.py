"""The sentences of a parallelism study, from records with known numbers."""

from pathlib import Path

import pytest

from phalanx.records.schema import Outcome
from phalanx.report.parallelism.findings import findings, headline
from phalanx.report.parallelism.study_data import ParallelismStudyData, read_study_data
from tests.report.parallelism.made_parallelism import Made, failed, make, schemes


def told(data: ParallelismStudyData) -> dict[str, list[str]]:
    """Sentences by the title of their topic."""
    return {
        topic.title: [f"{s.label}: {s.text}" for s in topic.sentences] for topic in findings(data)
    }


@pytest.fixture(scope="module")
def sentences(made: ParallelismStudyData) -> dict[str, list[str]]:
    return told(made)


def test_the_headline_is_the_largest_speed_up(made: ParallelismStudyData) -> None:
    assert headline(made) == (
        "The ring all-reduce on 2 ranks trains the MLP 1.25 times (1.14 to 1.38) as fast as one "
        "process with one thread"
    )


def test_who_wins_where(sentences: dict[str, list[str]]) -> None:
    first, second, *_ = sentences["Which scheme wins"]
    assert first.startswith(
        "MLP: On 2 ranks the ring all-reduce is the fastest of 3 schemes (0.0320 s"
    )
    assert "1.25 times (1.14 to 1.38) the sequential speed" in first
    assert "; ZeRO 3 takes 1.88 times (1.70 to 2.06) as long" in first
    assert second.startswith("MLP: 2 of 6 configurations are seen to be faster than the sequential")
    assert "with one thread (0.0400 s an epoch)" in second


def test_memory_beside_its_formula(sentences: dict[str, list[str]]) -> None:
    least, theory = sentences["Memory"]
    assert "on 4 ranks ZeRO 3 keeps the least, 977 KB a rank against 3.81 MB" in least
    assert "(25 %), by the formula 16\N{GREEK CAPITAL LETTER PSI}/p" in least
    assert theory == "MLP: Measured memory is that of the formula in all 4 configurations."


def test_bytes_beside_their_formula(sentences: dict[str, list[str]]) -> None:
    text = sentences["Bytes"][0]
    assert "in 2 of 4 configurations every rank has sent the bytes of its formula" in text.lower()
    assert "zero 3, 4 ranks \N{NOT EQUAL TO} (+33.3 %)" in text


def test_who_makes_the_same_update_ends_with_the_same_loss(
    sentences: dict[str, list[str]],
) -> None:
    same, drift, *_ = sentences["The same mathematics"]
    assert same.startswith("MLP: 4 of 4 configurations")
    assert "the asynchronous parameter server ends with loss" in drift
    assert "(+4.0 %, +0.09 points of accuracy with one seed, which chance may be)" in drift


def test_from_scratch_up_to_many_workers(sentences: dict[str, list[str]]) -> None:
    (text,) = sentences["From scratch, up to many workers"]
    assert text.startswith("ring: With 64 hidden units an epoch is shortest on one process")
    assert "128 workers take 26.40 times (24.00 to 29.04) the time of one process" in text


def test_crossing_points_of_the_algorithms(sentences: dict[str, list[str]]) -> None:
    reign, naive = sentences["All-reduce on messages"]
    assert reign == "4 ranks: The fastest is naive from 4 B to 64 KB and ring from 1 MB to 16 MB."
    assert "ring beats it from 1 MB on (3.0 times (1.8 to 4.9) as fast at 16 MB: 3.00 ms)" in naive


def test_what_failed_is_named(sentences: dict[str, list[str]]) -> None:
    assert sentences["Not completed"] == [
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
    assert "times the sequential speed" not in told(data)["Which scheme wins"][0]
    assert "ways of splitting a training" in headline(data)


def test_where_nothing_beats_one_process_it_is_said(tmp_path: Path) -> None:
    slow = Made(name="slow", strategy="mpi", ranks=2, step_s=1.0)
    alone = Made(name="alone", strategy="sequential", waiting=0.0)
    data = read_study_data(make(tmp_path / "s", [alone, slow]))
    assert headline(data) == (
        "No way of splitting the training is seen to beat one process with one thread here"
    )
    assert "None of 1 configurations" in told(data)["Which scheme wins"][0]


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
    first, second = told(data)["Which scheme wins"]
    assert "on 2 ranks the fastest of 3 schemes cannot be told" in first.lower()
    assert "None of 3 configurations is seen to be faster" in second
    assert "is seen to beat one process" in headline(data)
