"""Runs as rows: seeds together, speed-up and efficiency against the sequential program."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from phalanx.report.measures import RunMeasure
from phalanx.report.training import layout_columns, workload_labels
from tests.report.made_events import set_otherwise
from tests.report.made_study import Job, run_of
from tests.report.made_view import measured, read, repeated, view_of


def test_speed_up_and_efficiency() -> None:
    alone, both, spread = view_of(
        repeated(
            (Job("mlp", "sequential"), 6.0),
            (Job("mlp", "sequential", threads=2), 4.0),
            (Job("mlp", "mpi", ranks=4), 2.0),
        )
    ).frame("cells")
    assert (alone["speed_up"], alone["efficiency"]) == (1.0, 1.0)
    assert (both["speed_up"], both["efficiency"]) == (1.5, 0.75)
    assert (spread["speed_up"], spread["efficiency"]) == (3.0, 0.75)
    assert spread["rate"] == 600.0


def test_reference_has_the_same_model_and_batch() -> None:
    wide, _ = view_of(
        repeated((Job("mlp", "mpi", ranks=2, batch_size=256), 1.0), (Job("cnn", "sequential"), 1.0))
    ).frame("cells")
    assert (wide["speed_up"], wide["efficiency"]) == (None, None)


def test_seeds_are_one_cell() -> None:
    runs = [
        measured(Job("mlp", "mpi", ranks=2, seed=seed), time_s, accuracy)
        for seed, time_s, accuracy in ((0, 1.0, 0.90), (1, 4.0, 0.94), (2, 2.0, 0.92))
    ]
    (cell,) = view_of(runs).frame("cells")
    assert cell["epoch_s"] == 2.0
    assert cell["accuracy"] == pytest.approx(0.92)
    assert (cell["accuracy_low"], cell["accuracy_high"], cell["seeds"]) == (0.90, 0.94, 3)


def test_failed_runs_are_in_no_cell() -> None:
    failed = replace(measured(Job("mlp", "sequential"), 1.0), status="failed")
    assert view_of([failed]).frame("cells") == []


def test_a_batch_of_each_rank_is_compared_with_the_sequential_program_at_that_batch() -> None:
    per_rank = run_of(Job("mlp", "mpi", ranks=4, batch_size=512), "s")
    row = layout_columns(msgspec.structs.replace(per_rank, config={"per_rank_batch_size": 128}))
    assert (row["batch_size"], row["batch"]) == (128, "128 per rank")


def test_labels_say_what_differs_and_nothing_else(full: Path) -> None:
    _, (view,) = read(full)
    assert [panel.label for panel in view.panels] == ["MLP", "CNN", "RNN"]
    first = run_of(Job("mlp", "mpi"), "s")
    other = set_otherwise(msgspec.structs.replace(first, run="other"), epochs=1)
    assert list(workload_labels([first, other]).values()) == ["MLP · 5 EPOCHS", "MLP · 1 EPOCHS"]


def test_scaling_is_drawn_at_the_batch_that_most_cells_have(full: Path) -> None:
    _, (view,) = read(full)
    assert {row["batch_size"] for row in view.frame("cells") if row["main"]} == {128}


def with_options(run: RunMeasure, **options: object) -> RunMeasure:
    assert run.run is not None
    config = {**run.run.config, **options}
    chosen = {name: str(value) for name, value in options.items() if value is not None}
    name = "-".join([run.name, *(f"{key}-{value}" for key, value in options.items())])
    changed = msgspec.structs.replace(run.run, run=name, config=config)
    return replace(run, name=name, run=set_otherwise(changed, options=chosen))


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
    both = view_of([plain, with_options(plain, **option)]).frame("cells")
    assert [len(cell["_runs"]) for cell in both] == [1, 1]


def test_the_seed_and_where_a_run_is_kept_make_no_other_cell() -> None:
    first = with_options(measured(Job("mlp", "mpi", ranks=2), 1.0), run_dir="a", seed=0)
    second = with_options(measured(Job("mlp", "mpi", ranks=2, seed=1), 1.0), run_dir="b", seed=1)
    (cell,) = view_of([first, second]).frame("cells")
    assert len(cell["_runs"]) == 2


def test_what_tells_cells_apart_is_in_their_names() -> None:
    plain = measured(Job("mlp", "mpi", ranks=2), 1.0)
    topk = with_options(plain, compress="topk", link="100Mbit/s")
    fewer = with_options(plain, train_samples=600)
    view = view_of([plain, topk, fewer])
    phrases = [row["phrase"] for row in view.frame("cells")]
    assert phrases[1] == "MPI (compress topk, link 100Mbit/s) on 2 ranks"
    assert [panel.label for panel in view.panels] == ["MLP", "MLP · TRAIN SAMPLES 600"]
