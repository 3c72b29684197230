"""The runs of the scaling study: which runs, in which order, under which names."""

import pytest

from phalanx.errors import UserError
from phalanx.jobs.allocation import THIS_MACHINE, Allocation, Node
from phalanx.study.run import environment_of
from phalanx.study.scaling import (
    ScalingConfig,
    larger_study_hint,
    layouts,
    runs_of,
    spread,
)
from phalanx.train.run import complete, setting_of


def test_the_layouts_on_two_cores() -> None:
    quick = [("sequential", 1, 1), ("sequential", 1, 2), ("mpi", 2, 1), ("gloo", 2, 1)]
    assert [one[:3] for one in layouts(ScalingConfig(), cores=2)] == quick
    assert [one[:3] for one in layouts(ScalingConfig(full=True), cores=2)] == [
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
    found = [one[:3] for one in layouts(ScalingConfig(), cores)]
    assert [number for strategy, number, _ in found if strategy == "mpi"] == ranks
    assert len(runs_of(ScalingConfig(), cores)) <= 2 * 3 * (2 + 2 * len(ranks))


def test_five_epochs_are_timed_and_runs_repeated_seed_after_seed() -> None:
    """What is compared is made in turn, and again in turn."""
    runs = runs_of(ScalingConfig(), cores=2)
    assert all(run.config.epochs >= 6 for run in runs), "the first is warm-up"
    seeds = [run.config.seed for run in runs]
    assert seeds == sorted(seeds)
    assert len(set(seeds)) >= 3


def test_what_a_longer_run_would_add_is_said() -> None:
    text = larger_study_hint(ScalingConfig(), cores=2)
    assert "for all samples, the RNN, up to 4 ranks: `--full`" in text
    assert "`--seeds 0 1 2 3 4 5 6 7 8 9 10 11` (intervals less than half as wide)" in text
    assert "`--seeds 0 1 2` (shows the variation" in larger_study_hint(ScalingConfig(seeds=(0,)), 2)


def test_every_combination_is_planned_once() -> None:
    study = ScalingConfig(ranks=(1, 3), threads=(2,), batch_sizes=(64, 128), seeds=(0, 1))
    names = [run.name for run in runs_of(study, cores=2)]
    assert len(names) == len(set(names)) == 2 * 2 * 2 * (1 + 2 + 2)
    assert names[0] == "mlp-sequential-2t-b64-s0"
    assert "cnn-gloo-3x1-b128-s1" in names


def test_what_is_compared_differs_in_the_layout_alone() -> None:
    runs = [run.config for run in runs_of(ScalingConfig(models=("rnn",), seeds=(0,)), cores=2)]
    same = {
        (c.model, c.seed, c.epochs, c.batch_size, c.train_samples, c.lr, c.optimizer) for c in runs
    }
    assert len(same) == 1


def test_full_takes_all_samples() -> None:
    quick, full = (runs_of(ScalingConfig(full=full), cores=1)[0].config for full in (False, True))
    assert quick.train_samples is not None
    assert full.train_samples is None


def test_a_batch_that_the_ranks_cannot_share_is_refused_before_anything_runs() -> None:
    with pytest.raises(UserError, match="--batch-size 2 is the global batch size, but there are 4"):
        runs_of(ScalingConfig(full=True, batch_sizes=(2,)), cores=2)


def test_ranks_are_spread_over_nodes() -> None:
    granted = Allocation((Node("a", 2), Node("b", 2), Node("c", 3)), "--hosts")
    assert spread(None, (1, 2, 3), granted) == [
        (2, "a:2"),
        (2, "a:1,b:1"),
        (4, "a:2,b:2"),
        (6, "a:2,b:2,c:2"),
    ]
    assert spread((2,), (2,), granted) == [(2, "a:1,b:1")]
    with pytest.raises(UserError, match="--nodes 4: 3 are given"):
        spread(None, (1, 4), granted)
    with pytest.raises(UserError, match="--ranks 5: no run can use it"):
        spread((2, 5), (1, 2), granted)
    with pytest.raises(UserError, match="--nodes 3: no run can use it"):
        spread((2,), (1, 3), granted)
    with pytest.raises(UserError, match=r"--nodes 2: 1 is given .this machine."):
        spread(None, (2,), THIS_MACHINE)


def test_a_run_on_nodes_is_named_after_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHALANX_HOSTS", "a:1,b:1")
    study = ScalingConfig(models=("mlp",), seeds=(0,), nodes=(2,), strategies=("sequential", "mpi"))
    alone, first, *_ = runs_of(study, cores=1)
    assert (alone.environment, first.environment) == ({}, {"PHALANX_HOSTS": "a:1,b:1"})
    assert first.name == "mlp-mpi-2x1-2n-b128-s0"
    with environment_of(first.environment):
        assert setting_of(complete(first.config, None)[0]).nodes == 2
