"""Claims about collectives: their numbers, and when none is made."""

from pathlib import Path

import pytest

from phalanx.records.schema import Outcome
from phalanx.report.pages.collectives import (
    against_rest,
    crossings,
    gain,
    headline,
    keys,
    pairs,
    private_tensors,
)
from phalanx.report.values import View
from tests.report.collectives.made_bench import MEDIANS, make_bench
from tests.report.made_view import check_claims, read


def view_of(folder: Path) -> View:
    _, (view,) = read(folder)
    return view


def test_ours_against_the_fastest_of_the_others(tmp_path: Path) -> None:
    view = view_of(make_bench(tmp_path / "b"))
    gains = [round(gain(pair), 2) for pair in pairs(view.panels[0])]
    assert gains == [0.8, 8.0, 5.0, 5.0]
    found = list(against_rest(view))
    assert [told.verdict for told in found] == ["unclear", "higher", "higher", "higher"]
    assert [told.interval.estimate for told in found if told.interval] == pytest.approx(gains)
    assert (
        found[1].text == "phalanx window at 64 KB: 8.00× faster than Open MPI (95 % CI 4.89–13.08)"
    )


def test_the_key_figure_has_its_interval(tmp_path: Path) -> None:
    """It was a bare ratio; what its interval does not tell apart is shown as a time."""
    view = view_of(make_bench(tmp_path / "b", collectives=("all_reduce", "barrier")))
    figure, apart = keys(view)
    assert figure.value == "5.00×"
    assert figure.beside == "3.22\N{EN DASH}7.76; 12.0 µs against 60.0 µs"
    assert apart.value == "500 ns"
    assert apart.beside.startswith("400 ns with Open MPI")


@pytest.mark.parametrize(
    ("medians", "text"),
    [
        (
            MEDIANS,
            "fastest: phalanx window from 64 KB to 16 MB; at 4 B no path is clearly the fastest",
        ),
        (
            {**MEDIANS, "window": (4e-6, 1e-6, 12e-6, 400e-6)},
            "fastest: Open MPI at 4 B and phalanx window from 64 KB to 16 MB",
        ),
        (
            {"phalanx": (1e-3,) * 4, "torch": (1.02e-3,) * 4, "gloo": (1.01e-3,) * 4},
            "no path is clearly the fastest",
        ),
        ({"phalanx": (1e-6,) * 4, "gloo": (1e-3,) * 4}, "fastest at every size: phalanx"),
    ],
)
def test_who_wins_where(medians: dict[str, tuple[float, ...]], text: str, tmp_path: Path) -> None:
    view = view_of(make_bench(tmp_path / "b", medians=medians))
    assert [told.text for told in crossings(view)] == [text]


def test_one_path_has_nobody_to_win_against(tmp_path: Path) -> None:
    view = view_of(make_bench(tmp_path / "b", medians={"gloo": (1e-3,) * 4}))
    assert list(crossings(view)) == []
    assert list(against_rest(view)) == []
    assert keys(view) == []
    assert headline(view) == "16 MB all-reduce: 1.00 ms with Gloo"


def test_unmodified_scripts(tmp_path: Path) -> None:
    (told,) = private_tensors(view_of(make_bench(tmp_path / "b")))
    assert told.text.startswith(
        "torch.distributed, backend mpi at 16 MB: 8.89× faster than Gloo (95 % CI 5.43"
    )


def test_headline(tmp_path: Path) -> None:
    content, _ = read(make_bench(tmp_path / "b"))
    check_claims(content)
    assert content.headline == "1 MB all-reduce: phalanx window 5.00× faster than Open MPI"


def test_of_several_libraries_the_hardest_rival_is_told_at_each_size(tmp_path: Path) -> None:
    make_bench(tmp_path / "openmpi", obstacles={"nccl": "no GPU"})
    faster = {**MEDIANS, "mpi": (0.5e-6, 9e-6, 24e-6, 3e-3)}
    make_bench(
        tmp_path / "impi", medians=faster, mpi="Intel MPI 2021.18", obstacles={"nccl": "no GPU"}
    )
    content, (view,) = read(tmp_path)
    assert [panel.label for panel in view.panels] == [
        "All-reduce, Intel MPI 2021.18",
        "All-reduce, Open MPI 5.0.11",
    ]
    assert headline(view) == "1 MB all-reduce: phalanx window 2.00× faster than Intel MPI"
    found = list(against_rest(view))
    assert {told.label for told in found} == {"All-reduce, 2 ranks, 2 libraries"}
    estimates = [told.interval.estimate for told in found if told.interval]
    assert estimates == pytest.approx([0.8, 8.0, 2.0, 5.0])
    # What holds for every run is said once.
    missing = [text for _, text in content.conditions if text.startswith("Not measured")]
    assert missing == ["Not measured: all-reduce: no GPU."]


def test_right_and_wrong_results(tmp_path: Path) -> None:
    for name, wrong, text in (
        ("right", {}, "All results of 96 timed calls were right, every element on every rank."),
        ("wrong", {"gloo": 7}, "Gloo at 16 MB: 7 wrong elements."),
    ):
        texts = [text for _, text in read(make_bench(tmp_path / name, wrong=wrong))[0].claims]
        assert texts[0 if wrong else -1] == text


def test_what_is_missing_and_what_failed_is_said(tmp_path: Path) -> None:
    failed = Outcome(status="failed", error="rank 1 is gone")
    obstacles = {"nccl": "there is no GPU"}
    content, _ = read(make_bench(tmp_path / "b", obstacles=obstacles, outcome=failed))
    assert ("nccl", "Not measured: all-reduce: there is no GPU.") in content.conditions
    assert ("b", "rank 1 is gone") in content.conditions


def test_a_barrier_has_no_sizes_to_speak_of(tmp_path: Path) -> None:
    view = view_of(make_bench(tmp_path / "b", collectives=("barrier",)))
    (told,) = against_rest(view)
    assert told.text.startswith("No significant difference between phalanx window and Open MPI")
    assert list(crossings(view)) == []


def test_a_machine_that_was_not_quiet(tmp_path: Path) -> None:
    def told(folder: Path) -> str:
        return read(folder)[0].notice

    assert told(make_bench(tmp_path / "quiet", preempted=10)) == ""
    text = told(make_bench(tmp_path / "busy", preempted=1000))
    assert text.startswith(
        "Ranks lost their core 500 times per second (Open MPI 5.0.11): the machine"
    )
    assert told(make_bench(tmp_path / "crowded", preempted=1000, ranks=3)) == ""


def test_calls_that_are_seen_to_be_slower_are_said_to_be(tmp_path: Path) -> None:
    slow = {**MEDIANS, "window": (4e-6, 64e-6, 600e-6, 20e-3)}
    first, *_ = against_rest(view_of(make_bench(tmp_path / "b", medians=slow)))
    assert first.text.startswith("phalanx window at 4 B: 10.00× slower than Open MPI (95 % CI ")
