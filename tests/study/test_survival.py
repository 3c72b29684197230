"""The runs of the survival study."""

from dataclasses import replace

import pytest

from phalanx.errors import UserError
from phalanx.study import survival
from phalanx.study.survival import WAYS, SurvivalConfig, SurvivalRun, runs_of


@pytest.fixture
def every_mpi_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SurvivalRun, "check", lambda _: None)


@pytest.mark.usefixtures("every_mpi_can")
def test_runs_of_a_seed_differ_in_faults_and_checkpoints_alone() -> None:
    runs = runs_of(SurvivalConfig(seeds=(0, 3))).runs
    assert [run.name for run in runs] == [f"{way}-s{seed}" for seed in (0, 3) for way in WAYS]
    assert [run.options["inject"] for run in runs[len(WAYS) :]] == [
        "", "kill:15:3", "stop:15:3:never", "kill:15:3", "terminate:15:3",
    ]  # fmt: skip
    for seed in (0, 1):
        configs = [run.config for run in runs[seed * len(WAYS) : (seed + 1) * len(WAYS)]]
        assert len({replace(config, checkpoint_steps=None) for config in configs}) == 1
        assert [config.checkpoint_steps for config in configs] == [None, None, None, 20, 20]


@pytest.mark.usefixtures("every_mpi_can")
def test_a_quick_study_is_short() -> None:
    runs = runs_of(SurvivalConfig(quick=True)).runs
    assert [run.name for run in runs] == [f"{way}-s0" for way in WAYS]
    assert runs[1].options["inject"] == "kill:4:0"
    assert (runs[1].options["spares"], runs[1].mpi_ranks) == (4, 8)
    assert "spares" not in runs[2].options and runs[2].mpi_ranks == 4
    assert runs[0].config.steps == survival.QUICK_STEPS


def test_an_mpi_that_ends_all_ranks_leaves_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(run: SurvivalRun) -> None:
        if WAYS[run.way].survives:
            raise UserError("--survive: MPICH ends all ranks when one dies")

    monkeypatch.setattr(SurvivalRun, "check", check)
    planned = runs_of(SurvivalConfig(seeds=(0,)))
    assert [run.name for run in planned.runs] == [
        "undisturbed-s0", "restarts-s0", "preemption-s0",
    ]  # fmt: skip
    why = "--survive: MPICH ends all ranks when one dies"
    assert planned.left_out == {"in-place": why, "stops": why}
    with pytest.raises(UserError, match="there is nothing to run: --survive: MPICH"):
        runs_of(SurvivalConfig(ways=("in-place",)))
