"""Sentences: what they say, and what they must not say."""

from pathlib import Path

from phalanx.report.answers import (
    accuracy_against_sequential,
    best_configuration,
    communication_wall,
    mpi_or_gloo,
    oversubscription,
)
from phalanx.report.findings import findings, headline
from phalanx.report.folder import read_folder
from tests.report.made_study import Job, make_study
from tests.report.test_comparison import cells, compare, measured


def test_best_against_one_thread_and_against_the_best_sequential_run() -> None:
    text = best_configuration(
        cells(
            (Job("mlp", "sequential"), 6.0),
            (Job("mlp", "sequential", threads=2), 4.0),
            (Job("mlp", "mpi", ranks=2), 2.0),
        )
    )
    assert text == (
        "MPI on 2 ranks is the fastest of 3 configurations: 2.00 s an epoch, 600 images/s, "
        "3.00 times as fast as the sequential program with 1 thread and 2.00 times as fast as "
        "the best sequential run (2 threads)."
    )


def test_nothing_is_compared_with_a_baseline_that_is_not_there() -> None:
    text = best_configuration(
        cells((Job("mlp", "mpi", ranks=1), 3.0), (Job("mlp", "mpi", ranks=2), 2.0))
    )
    assert text is not None
    assert text.endswith("there is no sequential run with 1 thread to compare it with.")
    assert "times as fast" not in text


def test_the_sequential_program_may_win() -> None:
    text = best_configuration(
        cells((Job("mlp", "sequential"), 1.0), (Job("mlp", "mpi", ranks=2), 2.0))
    )
    assert text is not None
    assert text.endswith("neither threads nor ranks made the epoch shorter.")


def test_the_wall_is_where_an_epoch_gets_no_shorter() -> None:
    text = communication_wall(
        cells(
            (Job("mlp", "mpi", ranks=1), 4.0),
            (Job("mlp", "mpi", ranks=2), 2.0),
            (Job("mlp", "mpi", ranks=4), 2.0),
            (Job("mlp", "gloo", ranks=1), 4.0),
            (Job("mlp", "gloo", ranks=2), 3.0),
        )
    )
    assert text == (
        "With MPI the wall stands at 4 ranks, where ranks share cores (2.00 s, against 2.00 s on "
        "2 ranks); with Gloo there is no wall up to 2 ranks."
    )


def test_no_wall_is_claimed_from_one_number_of_ranks() -> None:
    assert communication_wall(cells((Job("mlp", "mpi", ranks=2), 1.0))) is None


def test_oversubscription_says_how_much_slower() -> None:
    text = oversubscription(
        cells(
            (Job("mlp", "mpi", ranks=2), 2.0),
            (Job("mlp", "mpi", ranks=3), 3.0),
            (Job("mlp", "mpi", ranks=4), 5.0),
        )
    )
    assert text == (
        "More threads than the 2 cores of this machine: MPI on 3 ranks takes 50 % longer than on "
        "2 ranks; MPI on 4 ranks takes 2.5 times as long as on 2 ranks."
    )


def test_accuracy_with_one_seed_has_no_spread() -> None:
    found = compare(
        [
            measured(Job("mlp", "sequential"), 1.0, 0.9),
            measured(Job("mlp", "mpi", ranks=2), 1.0, 0.895),
        ]
    )
    assert accuracy_against_sequential(found) == (
        "After 5 epochs the sequential program reaches 90.00 %; the other configuration differs "
        "from it by −0.50 percentage points; with a single seed no spread can be given."
    )


def test_accuracy_within_the_spread_of_the_seeds() -> None:
    found = compare(
        [
            measured(Job("mlp", "sequential", seed=0), 1.0, 0.90),
            measured(Job("mlp", "sequential", seed=1), 1.0, 0.92),
            measured(Job("mlp", "mpi", ranks=2), 1.0, 0.915),
            measured(Job("mlp", "gloo", ranks=2), 1.0, 0.80),
        ]
    )
    text = accuracy_against_sequential(found)
    assert text is not None
    assert "91.00 % (90.00 % to 92.00 % over 2 seeds)" in text
    assert "between −11.00 and +0.50 percentage points (the most: Gloo on 2 ranks)" in text
    assert text.endswith("1 of 2 means lie within that spread.")


def test_mpi_against_gloo_only_where_all_else_is_equal() -> None:
    found = cells(
        (Job("mlp", "mpi", ranks=1), 1.0),
        (Job("mlp", "gloo", ranks=1), 1.01),
        (Job("mlp", "mpi", ranks=2), 1.0),
        (Job("mlp", "gloo", ranks=2), 1.5),
        (Job("mlp", "mpi", ranks=4), 1.0),
    )
    assert mpi_or_gloo(found) == (
        "MPI is as fast as Gloo with 1 rank and 1.50 times as fast as Gloo with 2 ranks."
    )
    assert mpi_or_gloo(found[4:]) is None


def test_runs_that_were_not_completed_are_counted_and_named(troubled: Path) -> None:
    last = findings(read_folder(troubled))[-1]
    assert last.title == "Not completed"
    assert last.sentences[0].text == (
        "3 of 6 runs: 1 failed, 1 interrupted and 1 missing (mlp-mpi-r3-b128-s0, "
        "mlp-gloo-r2-b128-s0 and mlp-gloo-r4-b128-s0)."
    )
    assert [s.label for s in last.sentences[1:]] == ["mlp-mpi-r3-b128-s0"]
    assert last.sentences[1].text.startswith("rank 2: RuntimeError:")


def test_headlines(full: Path, alone: Path, tmp_path: Path) -> None:
    assert headline(read_folder(full)).startswith("MPI on 2 ranks trains the RNN 1.9")
    assert headline(read_folder(alone)).startswith("An epoch of the CNN takes ")
    empty = make_study(tmp_path / "empty", [], also_planned=["mlp-mpi"])
    assert headline(read_folder(empty)) == "No run of this study was completed yet"
