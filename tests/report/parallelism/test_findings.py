"""Claims of a parallelism study, from records with known numbers."""

from pathlib import Path

import pytest

from phalanx.records.schema import Outcome
from phalanx.report.claims import Fastest
from phalanx.report.pages.parallelism import BEST
from phalanx.report.pages.scratch import most_workers
from phalanx.report.parallelism_rows import drift, formulas_hold, least_memory, losses_agree
from phalanx.report.values import View
from tests.report.made_view import check_claims, read, texts, told
from tests.report.parallelism.made_parallelism import Made, failed, make, schemes


def view_of(folder: Path) -> View:
    return read(folder)[1][0]


def test_the_headline_is_the_largest_speed_up(study: Path) -> None:
    content, _ = read(study)
    check_claims(content)
    assert content.headline == "MLP: mpi ring, 2 ranks 1.25× faster than one process"
    mlp, gpt = content.key_figures
    assert (mlp.value, mlp.meaning) == ("1.25×", "the ring all-reduce on 2 ranks")
    assert mlp.beside == "1.14–1.38; 0.0320 s per epoch, 90.00 % accuracy"
    assert (gpt.value, gpt.meaning) == ("0.0400 s", "per epoch, the 1F1B pipeline on 2 ranks")


def test_who_wins_where(made: list[View]) -> None:
    assert texts(made[0], Fastest) == [
        f"on {ranks} ranks: the ring all-reduce is the fastest of 3 schemes: 0.0320 s per epoch"
        for ranks in (2, 4)
    ]


def test_memory_and_bytes_beside_their_formulas(made: list[View]) -> None:
    (least,) = (found.text for found in least_memory(made[0]))
    assert least == (
        "ZeRO 3 on 4 ranks needs the least memory, 977 KB per rank against 3.81 MB of one process "
        "(25 %), by the formula 16\N{GREEK CAPITAL LETTER PSI}/p"
    )
    sent, memory = (found.text for found in formulas_hold(made[0]))
    assert sent == (
        "2 of 4 configurations send as many bytes as their formula on every rank; not zero 3, 2 "
        "ranks \N{NOT EQUAL TO} (+33.3 %) and zero 3, 4 ranks \N{NOT EQUAL TO} (+33.3 %)"
    )
    assert memory == "4 of 4 configurations need as much memory as their formula"


def test_who_makes_the_same_update_ends_with_the_same_loss(made: list[View]) -> None:
    mlp, _ = (found.text for found in losses_agree(made[0]))
    assert mlp.startswith("4 of 4 configurations with the sequential update end with its")
    (found,) = drift(made[0])
    assert (found.verdict, found.interval) == ("unclear", None), "a single seed"
    assert found.text == (
        "the asynchronous parameter server on 4 ranks: +0.09 points against the sequential "
        "program, one seed; loss 0.3501, +4.0 %"
    )


def test_from_scratch_up_to_many_workers(made: list[View]) -> None:
    best, _ = texts(made[1], Fastest)
    assert best.startswith("64 hidden units: one process is the fastest of 4 numbers of workers")
    most, _ = most_workers(made[1])
    assert most.text == "64 hidden units on 128 workers: 26.40× slower than one process " + (
        "(95 % CI 24.00–29.04)"
    )


def test_crossing_points_of_the_algorithms(study: Path) -> None:
    claims = dict(read(study)[0].claims)
    assert claims["All-reduce"] == "fastest: naive from 4 B to 64 KB and ring from 1 MB to 16 MB."


def test_what_failed_is_named(study: Path) -> None:
    assert read(study)[0].conditions == [
        (
            "",
            "Not completed: 2 of 20 runs: 1 failed and 1 missing (mlp-gloo-4-s0 and "
            "mlp-shared-4-s0).",
        ),
        ("mlp-gloo-4-s0", "rank 2: RuntimeError: </script><b>lost</b> & gone"),
    ]


def test_a_study_of_failures_says_so(tmp_path: Path) -> None:
    content, _ = read(make(tmp_path / "s", [failed()]))
    assert content.headline == "No run of this study has completed yet"
    assert content.claims == []


def test_without_a_sequential_run_there_is_no_speed_up(tmp_path: Path) -> None:
    view = view_of(make(tmp_path / "s", [run for run in schemes() if run.strategy != "sequential"]))
    assert {found.text for found in told(view, BEST)} == {""}
    assert view.page.headline(view).startswith("MLP: 0.0320 s per epoch")


def test_where_nothing_beats_one_process_it_is_said(tmp_path: Path) -> None:
    slow = Made(name="slow", strategy="mpi", ranks=2, step_s=1.0)
    alone = Made(name="alone", strategy="sequential", waiting=0.0)
    content, _ = read(make(tmp_path / "s", [alone, slow]))
    assert content.headline == "No scheme is significantly faster than one process"


def test_an_interrupted_run_is_in_no_comparison(tmp_path: Path) -> None:
    runs = [
        Made(name="alone", strategy="sequential", waiting=0.0),
        Made(name="cut", strategy="mpi", ranks=2, outcome=Outcome(status="interrupted")),
    ]
    content, (view,) = read(make(tmp_path / "s", runs))
    assert [row["strategy"] for row in view.frame("cells")] == ["sequential"]
    assert "1 interrupted (cut)" in content.conditions[0][1]


def test_schemes_of_one_speed_are_not_ranked(tmp_path: Path) -> None:
    runs = [Made(name="alone", strategy="sequential", waiting=0.0)]
    runs += [
        Made(name=name, strategy="mpi", ranks=2, options={"all_reduce": name}, step_s=step_s)
        for name, step_s in (("ring", 2.0e-3), ("tree", 2.05e-3), ("halving", 1.95e-3))
    ]
    view = view_of(make(tmp_path / "s", runs))
    (text,) = texts(view, Fastest)
    assert text.startswith("on 2 ranks: No clear winner among 3 schemes")
    assert view.page.headline(view).endswith("significantly faster than one process")


@pytest.mark.parametrize("ranks", [2, 4])
def test_what_is_exchanged_within_the_passes_is_not_called_no_waiting(
    made: list[View], ranks: int
) -> None:
    cells = {(row["strategy"], row["ranks"]): row for row in made[0].frame("cells")}
    assert cells["zero 3", ranks]["waiting"] is None
    assert cells["mpi ring", ranks]["waiting"] == pytest.approx(0.3)
