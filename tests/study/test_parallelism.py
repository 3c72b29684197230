"""The runs of the parallelism study: which runs, in which order, and what is left out why."""

from pathlib import Path
from typing import Any

import pytest

from phalanx.cli.study import parallelism
from phalanx.errors import UserError
from phalanx.models.options import MNIST_SHAPE, DataShape, ModelName
from phalanx.report.schemes import SPLITTING
from phalanx.study.parallelism import (
    SCHEMES,
    ParallelismConfig,
    layouts,
    runs_of,
    scratch_layouts,
    scratch_runs,
)
from phalanx.study.run import StudyRuns, TrainingRun
from phalanx.train.config import TrainConfig

SHAPES: dict[ModelName, DataShape] = {
    "mlp": MNIST_SHAPE,
    "cnn": MNIST_SHAPE,
    "gpt": DataShape(inputs=(64,), num_classes=96),
}


def planned(**options: Any) -> StudyRuns:
    return runs_of(ParallelismConfig(**options), SHAPES)


def configs(**options: Any) -> list[TrainConfig]:
    return [run.config for run in planned(**options).runs if isinstance(run, TrainingRun)]


def test_schemes_differ_in_how_the_work_is_split_alone() -> None:
    """Else the report would not compare them."""
    options = {name for scheme in SCHEMES.values() for name in scheme.options}
    assert options - {"strategy"} <= SPLITTING


def test_the_quick_study_has_every_scheme_on_four_ranks() -> None:
    made = planned()
    names = [run.name for run in made.runs]
    assert len(names) == len(set(names))
    assert {"mlp-ring-4-s0", "mlp-dp2-tp2-4-s0", "gpt-zero-bubble-4-s0"} <= set(names)
    assert {"mlp-mpi-2-s0", "gpt-1f1b-2-s0"} <= set(names)
    assert "mlp-ring-2-s0" not in names
    assert names.count("mlp-sequential-1-s0") == 1
    assert made.left_out == {}


def test_the_full_study_has_every_scheme_on_all_ranks() -> None:
    names = {run.name for run in planned(full=True, models=("mlp",)).runs}
    assert {f"mlp-ring-{ranks}-s0" for ranks in (2, 4)} <= names
    assert not any(name.startswith("mlp-dp2-tp2-2") for name in names)


def test_sequential_comes_first_and_ranks_grow() -> None:
    found = list(layouts(ParallelismConfig(), "mlp"))
    assert found[0] == ("sequential", 1)
    assert [ranks for _, ranks in found] == sorted(ranks for _, ranks in found)


def test_what_is_compared_differs_in_the_split_alone() -> None:
    same = {
        (c.model, c.seed, c.epochs, c.batch_size, c.train_samples, c.lr, c.optimizer, c.dataset)
        for c in configs(models=("mlp",))
    }
    assert len(same) == 1


@pytest.mark.parametrize(
    ("options", "name", "reason"),
    [
        ({"schemes": ("mpi", "server"), "ranks": (1, 2)}, "mlp-server-1-s0", "leaves no worker"),
        ({"schemes": ("mpi", "two-servers"), "ranks": (2,)}, "mlp-two-servers-2-s0", "no worker"),
        ({"schemes": ("mpi", "1f1b"), "ranks": (4,)}, "mlp-1f1b-4-s0", "mlp has 3 layers"),
        ({"schemes": ("mpi", "tensor"), "models": ("cnn",)}, "cnn-tensor-2-s0", "tensor"),
        (
            {"schemes": ("mpi", "tensor"), "ranks": (3,)},
            "mlp-tensor-3-s0",
            "is not divisible by tp=3",
        ),
    ],
)
def test_what_cannot_be_is_left_out_and_says_why(
    options: dict[str, Any], name: str, reason: str
) -> None:
    made = planned(**{"models": ("mlp",), **options})
    assert reason in made.left_out[name]
    assert name not in {run.name for run in made.runs}


def test_nothing_to_run_is_an_error() -> None:
    with pytest.raises(UserError, match=r"nothing to run: .*leaves no worker"):
        planned(models=("mlp",), schemes=("server",), ranks=(1,))


def test_ranks_count_what_they_send() -> None:
    runs = [run for run in planned().runs if isinstance(run, TrainingRun)]
    assert {run.environment["PHALANX_COUNT"] for run in runs} == {"1"}


def test_the_network_from_scratch_goes_up_to_many_workers() -> None:
    layouts = list(scratch_layouts(ParallelismConfig()))
    assert layouts[:3] == [("alone", 64, 1), ("server", 64, 1), ("alone", 256, 1)]
    assert {scheme for scheme, _, workers in layouts if workers == 128} == (
        {"server", "library", "ring"}
    )
    wide = [workers for _, hidden, workers in layouts if hidden == 256]
    assert max(wide) == 8, "beyond, the narrowest stands for all"
    assert ("ring", 256, 128) in scratch_layouts(ParallelismConfig(full=True))


def test_a_server_is_a_rank_beside_the_workers() -> None:
    runs = scratch_runs(ParallelismConfig(hidden=(64,), workers=(2,))).runs
    assert [run.name for run in runs] == (
        ["scratch-server-3-h64", "scratch-library-2-h64", "scratch-ring-2-h64"]
    )


def test_more_workers_than_samples_of_a_batch_are_left_out() -> None:
    made = scratch_runs(ParallelismConfig(workers=(2, 200)))
    assert "cannot be split over 200 workers" in made.left_out["scratch-ring-200-h64"]


def test_without_the_example_there_is_no_second_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phalanx.study.parallelism.PROGRAM", Path("elsewhere", "train.py"))
    made = scratch_runs(ParallelismConfig(workers=(2,)))
    assert not made.runs
    reason = "there is no elsewhere/train.py here: start in a checkout of Phalanx"
    assert made.left_out["scratch-ring-2-h64"] == reason


def test_the_parts_of_the_study_are_one_plan() -> None:
    config = ParallelismConfig(ranks=(2,), dataset="digits")
    parts = planned(ranks=(2,), dataset="digits"), scratch_runs(config)
    assert parallelism(config).runs == [*parts[0].runs, *parts[1].runs]
