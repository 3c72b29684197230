"""The plan of the scaling study: which runs, in which order, under which names."""

from typing import Any

import pytest

from phalanx.errors import UserError
from phalanx.study.scaling import (
    ScalingConfig,
    larger_study_hint,
    layouts,
    plan,
)


def test_the_layouts_on_two_cores() -> None:
    quick = [("sequential", 1, 1), ("sequential", 1, 2), ("mpi", 2, 1), ("gloo", 2, 1)]
    assert list(layouts(ScalingConfig(), cores=2)) == quick
    assert list(layouts(ScalingConfig(full=True), cores=2)) == [
        ("sequential", 1, 1),
        ("sequential", 1, 2),
        ("mpi", 1, 1),
        ("mpi", 2, 1),
        ("mpi", 4, 1),
        ("gloo", 1, 1),
        ("gloo", 2, 1),
        ("gloo", 4, 1),
    ]


@pytest.mark.parametrize(("cores", "ranks"), [(1, [2]), (2, [2]), (8, [2, 8])])
def test_a_quick_study_stays_small_on_any_machine(cores: int, ranks: list[int]) -> None:
    found = list(layouts(ScalingConfig(), cores))
    assert [number for strategy, number, _ in found if strategy == "mpi"] == ranks
    assert len(plan(ScalingConfig(), cores)) <= 2 * 3 * (2 + 2 * len(ranks))


def test_five_epochs_are_timed_and_runs_repeated_seed_after_seed() -> None:
    """What is compared is made in turn, and again in turn."""
    runs = plan(ScalingConfig(), cores=2)
    assert all(run.config.epochs >= 6 for run in runs), "the first is warm-up"
    seeds = [run.config.seed for run in runs]
    assert seeds == sorted(seeds)
    assert len(set(seeds)) >= 3


def test_what_a_longer_run_would_add_is_said() -> None:
    text = larger_study_hint(ScalingConfig(), cores=2)
    assert "--full: all training samples, RNN, 1 to 4 ranks" in text
    assert "--seeds 0 1 2 3 4 5 6 7 8 9 10 11: intervals less than half as wide" in text
    assert "--seeds 0 1 2: what differs" in larger_study_hint(ScalingConfig(seeds=(0,)), 2)


def test_every_combination_is_planned_once() -> None:
    study = ScalingConfig(ranks=(1, 3), threads=(2,), batch_sizes=(64, 128), seeds=(0, 1))
    names = [run.name for run in plan(study, cores=2)]
    assert len(names) == len(set(names)) == 2 * 2 * 2 * (1 + 2 + 2)
    assert names[0] == "mlp-sequential-2t-b64-s0"
    assert "cnn-gloo-3x1-b128-s1" in names


def test_what_is_compared_differs_in_the_layout_alone() -> None:
    runs = [run.config for run in plan(ScalingConfig(models=("rnn",), seeds=(0,)), cores=2)]
    same = {
        (c.model, c.seed, c.epochs, c.batch_size, c.train_samples, c.lr, c.optimizer) for c in runs
    }
    assert len(same) == 1


def test_full_takes_all_samples() -> None:
    quick, full = (plan(ScalingConfig(full=full), cores=1)[0].config for full in (False, True))
    assert quick.train_samples is not None
    assert full.train_samples is None


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
        plan(ScalingConfig(full=True, batch_sizes=(2,)), cores=2)
