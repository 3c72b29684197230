"""Seeds together, speed-up and efficiency against the sequential program."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from phalanx.report.comparison import (
    Cell,
    compare,
    layout_of,
    main_batch,
    sequential_reference,
    subject_labels,
)
from phalanx.report.folder import read_folder
from phalanx.report.measures import EpochMeasure, RunMeasure
from tests.report.made_study import Job, run_of


def measured(job: Job, epoch_s: float, accuracy: float = 0.9) -> RunMeasure:
    epoch = EpochMeasure(
        epoch=0,
        epoch_s=epoch_s,
        trained_s=epoch_s,
        samples=1200,
        train_loss=1.0,
        train_accuracy=0.5,
        validation_loss=0.5,
        validation_accuracy=accuracy,
    )
    return RunMeasure(
        name=job.name,
        status="completed",
        run=run_of(job, "s"),
        epochs=(epoch,),
        timed_epochs=(0,),
        epoch_s=epoch_s,
    )


def cells(*runs: tuple[Job, float]) -> list[Cell]:
    return list(compare(measured(job, epoch_s) for job, epoch_s in runs))


def test_speed_up_and_efficiency() -> None:
    alone, both, spread = cells(
        (Job("mlp", "sequential"), 6.0),
        (Job("mlp", "sequential", threads=2), 4.0),
        (Job("mlp", "mpi", ranks=4), 2.0),
    )
    assert (alone.speed_up, alone.efficiency) == (1.0, 1.0)
    assert (both.speed_up, both.efficiency) == (1.5, 0.75)
    assert (spread.speed_up, spread.efficiency) == (3.0, 0.75)
    assert spread.images_per_s == 600.0


def test_reference_has_the_same_model_and_batch() -> None:
    wide, other = cells(
        (Job("mlp", "mpi", ranks=2, batch_size=256), 1.0), (Job("cnn", "sequential"), 1.0)
    )
    assert sequential_reference(wide, [wide, other]) is None
    assert wide.speed_up is None
    assert wide.efficiency is None


def test_seeds_are_one_cell() -> None:
    runs = [
        measured(Job("mlp", "mpi", ranks=2, seed=seed), time_s, accuracy)
        for seed, time_s, accuracy in ((0, 1.0, 0.90), (1, 4.0, 0.94), (2, 2.0, 0.92))
    ]
    (cell,) = compare(runs)
    assert cell.epoch_s == 2.0
    assert cell.accuracy is not None
    assert cell.accuracy.mean == pytest.approx(0.92)
    assert (cell.accuracy.low, cell.accuracy.high, cell.accuracy.seeds) == (0.90, 0.94, 3)


def test_failed_runs_are_in_no_cell() -> None:
    failed = replace(measured(Job("mlp", "sequential"), 1.0), status="failed")
    assert compare([failed]) == ()


def test_oversubscribed_is_more_threads_than_cores() -> None:
    fits, crowded = cells(
        (Job("mlp", "mpi", ranks=2), 1.0), (Job("mlp", "mpi", ranks=2, threads=2), 1.0)
    )
    assert not fits.oversubscribed
    assert crowded.oversubscribed


def test_a_batch_of_each_rank_is_compared_with_the_sequential_program_at_that_batch() -> None:
    per_rank = run_of(Job("mlp", "mpi", ranks=4, batch_size=512), "s")
    per_rank = msgspec.structs.replace(per_rank, config={"per_rank_batch_size": 128})
    layout = layout_of(per_rank)
    assert (layout.batch_size, layout.batch_per_rank, layout.batch_label) == (
        128,
        True,
        "128 a rank",
    )


def test_labels_say_what_differs_and_nothing_else(full: Path) -> None:
    found = read_folder(full).cells
    assert set(subject_labels(cell.subject for cell in found).values()) == {"mlp", "cnn", "rnn"}
    subject = found[0].subject
    assert list(subject_labels([subject, replace(subject, epochs=1)]).values()) == [
        "mlp · 5 epochs",
        "mlp · 1 epochs",
    ]


def test_scaling_is_drawn_at_the_batch_that_most_cells_have(full: Path) -> None:
    assert main_batch(read_folder(full).cells) == 128
