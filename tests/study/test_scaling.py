"""The plan of the scaling study: which runs, in which order, under which names."""

from pathlib import Path
from typing import Any

import pytest

from phalanx.errors import UserError
from phalanx.study.scaling import ScalingConfig, default_folder, layouts, plan


def test_the_layouts_on_two_cores() -> None:
    assert list(layouts(ScalingConfig(), cores=2)) == [
        ("sequential", 1, 1),
        ("sequential", 1, 2),
        ("mpi", 1, 1),
        ("mpi", 2, 1),
        ("mpi", 4, 1),
        ("gloo", 1, 1),
        ("gloo", 2, 1),
        ("gloo", 4, 1),
    ]


def test_every_combination_is_planned_once() -> None:
    study = ScalingConfig(ranks=(1, 3), threads=(2,), batch_sizes=(64, 128), seeds=(0, 1))
    names = [run.name for run in plan(study, cores=2)]
    assert len(names) == len(set(names)) == 3 * 2 * 2 * (1 + 2 + 2)
    assert names[0] == "mlp-sequential-2t-b64-s0"
    assert "cnn-gloo-3x1-b128-s1" in names


def test_what_is_compared_differs_in_the_layout_alone() -> None:
    runs = [run.config for run in plan(ScalingConfig(models=("rnn",)), cores=2)]
    same = {
        (c.model, c.seed, c.epochs, c.batch_size, c.train_samples, c.lr, c.optimizer) for c in runs
    }
    assert len(same) == 1


def test_full_takes_all_samples() -> None:
    quick, full = (plan(ScalingConfig(full=full), cores=1)[0].config for full in (False, True))
    assert quick.train_samples is not None
    assert full.train_samples is None
    assert full.epochs > quick.epochs


def test_the_same_options_have_the_same_folder() -> None:
    runs = Path("runs")
    first = default_folder(ScalingConfig(), "digits", runs)
    assert first == default_folder(ScalingConfig(), "digits", runs)
    assert first != default_folder(ScalingConfig(seeds=(1,)), "digits", runs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": (1, 1)}, "--seeds names a value twice"),
        ({"models": ()}, "--models needs at least one value"),
    ],
)
def test_bad_lists(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ScalingConfig(**options)


def test_a_batch_that_the_ranks_cannot_share_is_refused_before_anything_runs() -> None:
    with pytest.raises(UserError, match="a global batch of 2 cannot be split over 4 ranks"):
        plan(ScalingConfig(batch_sizes=(2,)), cores=2)
