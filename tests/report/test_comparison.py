"""Seeds together, speed-up and efficiency against the sequential program."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from phalanx.report.comparison import (
    TrainingCell,
    compare,
    layout_of,
    main_batch,
    sequential_reference,
    workload_labels,
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


def cells(*runs: tuple[Job, float]) -> list[TrainingCell]:
    """Each run three times, with seeds of its own, half a percent apart."""
    return list(
        compare(
            measured(replace(job, seed=seed), epoch_s * factor)
            for job, epoch_s in runs
            for seed, factor in enumerate((0.995, 1.0, 1.005))
        )
    )


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
    assert set(workload_labels(cell.workload for cell in found).values()) == {"mlp", "cnn", "rnn"}
    workload = found[0].workload
    assert list(workload_labels([workload, replace(workload, epochs=1)]).values()) == [
        "mlp · 5 epochs",
        "mlp · 1 epochs",
    ]


def test_scaling_is_drawn_at_the_batch_that_most_cells_have(full: Path) -> None:
    assert main_batch(read_folder(full).cells) == 128


def with_options(run: RunMeasure, **options: object) -> RunMeasure:
    assert run.run is not None
    config = {**run.run.config, **options}
    chosen = {name: str(value) for name, value in options.items() if value is not None}
    setting = msgspec.structs.replace(run.run.setting, options=chosen)
    return replace(run, run=msgspec.structs.replace(run.run, config=config, setting=setting))


@pytest.mark.parametrize(
    "option",
    [
        {"compress": "topk"}, {"link": "100Mbit/s"}, {"weight_decay": 10.0}, {"augment": True},
        {"train_samples": 600}, {"overlap": "off"}, {"accumulate": 4}, {"autocast": "bf16"},
        {"lr_schedule": "step"}, {"lr_rule": "linear"}, {"warmup_epochs": 2.0},
        {"clip_norm": 1.0}, {"label_smoothing": 0.1}, {"momentum": 0.5}, {"staleness": 1},
        {"local_steps": 4}, {"micro_batches": 8}, {"an_option_of_next_year": "on"},
    ],
    ids=str,
)  # fmt: skip
def test_runs_that_differ_in_any_option_are_not_averaged(option: dict[str, object]) -> None:
    """Runs with and without a compressor, a link, ten times the decay were one cell of five."""
    plain = measured(Job("mlp", "mpi", ranks=2), 1.0, 0.98)
    both = compare([plain, with_options(plain, **option)])
    assert [len(cell.runs) for cell in both] == [1, 1]


def test_the_seed_and_where_a_run_is_kept_make_no_other_cell() -> None:
    first = with_options(measured(Job("mlp", "mpi", ranks=2), 1.0), run_dir="a", seed=0)
    second = with_options(measured(Job("mlp", "mpi", ranks=2, seed=1), 1.0), run_dir="b", seed=1)
    (cell,) = compare([first, second])
    assert len(cell.runs) == 2


def test_what_tells_cells_apart_is_in_their_names() -> None:
    plain = measured(Job("mlp", "mpi", ranks=2), 1.0)
    topk = with_options(plain, compress="topk", link="100Mbit/s")
    fewer = with_options(plain, train_samples=600)
    cells = compare([plain, topk, fewer])
    labels = [cell.layout.phrase for cell in cells]
    assert labels[1] == "MPI (compress topk, link 100Mbit/s) on 2 ranks"
    workloads = workload_labels(cell.workload for cell in cells)
    assert list(workloads.values()) == ["mlp", "mlp · train samples 600"]
