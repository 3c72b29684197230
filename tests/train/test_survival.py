"""`phalanx train --survive`: strategies that go on in place, and what is refused, with the reason.

The runs themselves: `tests/survival/test_train.py`.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from phalanx.errors import UserError
from phalanx.jobs.detect import Launched
from phalanx.jobs.survival import COLLECTIVES, FAULT_TOLERANCE
from phalanx.run.strategy import AskedStrategy, check_bitwise
from phalanx.run.strategy_options import NOT_SURVIVED, StrategyName, StrategyOptions
from phalanx.train.config import TrainConfig
from phalanx.train.run import EXCLUDED_OPTIONS, with_ranks

PAGE = Path(__file__).parents[2] / "docs" / "survival.md"


def rows() -> dict[str, str]:
    """Return the table of strategies on the page, by strategy."""
    lines = PAGE.read_text().partition("## Strategies")[2].partition("\n## ")[0].splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("| `")]
    return {strategy.strip("`"): said for strategy, said, *_ in cells}


@pytest.mark.parametrize("strategy", get_args(StrategyName))
def test_every_strategy_survives_or_says_why_not(strategy: StrategyName) -> None:
    said = rows()[strategy]
    options: dict[str, Any] = {"mesh": "dp=2,tp=2"} if strategy == "mesh" else {}
    if strategy == "zero":
        options = {"zero_stage": 1}
    if strategy not in NOT_SURVIVED:
        config = TrainConfig.from_options(strategy=strategy, survive=True, **options)
        assert config.bitwise and said.startswith("yes")
        assert TrainConfig.from_record(config.as_record()) == config
        return
    assert said == f"no: {NOT_SURVIVED[strategy]}"
    with pytest.raises(UserError, match=r"use --strategy mpi, or restarts .*--restarts N") as why:
        TrainConfig.from_options(strategy=strategy, survive=True, **options)
    assert NOT_SURVIVED[strategy] in str(why.value)
    assert len(str(why.value).splitlines()) <= 2


@pytest.mark.parametrize("strategy", get_args(AskedStrategy))
def test_programs_survive_by_the_same_strategies(
    strategy: AskedStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FAULT_TOLERANCE, "1")
    name = "mpi" if strategy == "auto" else strategy
    options = StrategyOptions(strategy=name, **({"zero_stage": 1} if name == "zero" else {}))
    if name in ("mpi", "sequential", "shared", "zero"):
        check_bitwise(options, is_on_gpu=False)
    else:
        with pytest.raises(UserError, match=rf"--strategy {name} exclude each other: .*; use"):
            check_bitwise(options, is_on_gpu=False)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"compress": "fp16"}, r"without --bitwise \(or --survive\)"),
        ({"overlap": "on"}, "--overlap on and --survive exclude each other"),
        ({"strategy": "shared", "spares": 1}, "--spares 1 and --strategy shared exclude each"),
        ({"strategy": "zero", "zero_stage": 3}, "--zero-stage 3 exclude each other"),
        ({"threads": 2}, "uses one thread per rank, not 2"),
        ({"accumulate": 2}, "--micro-batches: use that in place of --accumulate 2"),
        ({"per_rank_batch_size": 8}, "depend on the number of ranks"),
        ({"data": Path("pack"), "damaged": "skip"}, "leave --damaged skip out"),
        ({"data": Path("pack"), "stage": Path("disk")}, "--survive exclude each other"),
        ({"ranks": 9}, "--micro-batches 8 is out of range: with 9 ranks"),
    ],
)
def test_what_bitwise_runs_lack_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        config = TrainConfig.from_options(**{"strategy": "mpi", "survive": True, **options})
        replace(config, ranks=config.ranks or 1).bitwise_micro_batches()


@pytest.mark.parametrize(
    ("launcher", "environ", "words"),
    [
        ("hydra", {}, "MPICH or Intel MPI ends all ranks when one dies; only restarts from"),
        ("slurm", {}, "start the ranks by phalanx with --survive, or by mpirun"),
        ("openmpi", {}, "start the ranks by phalanx with --survive, or by mpirun.*--restarts N"),
        ("openmpi", {FAULT_TOLERANCE: "1", COLLECTIVES: "^hcoll"}, "leaves han, portals4 in use"),
    ],
)
def test_launchers_that_end_all_ranks_are_refused(
    launcher: Any, environ: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (FAULT_TOLERANCE, COLLECTIVES):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    config = TrainConfig.from_options(strategy="mpi", survive=True)
    with pytest.raises(UserError, match=words):
        with_ranks(config, Launched(launcher=launcher, rank=0, world_size=2))


def test_it_is_no_part_of_what_decides_the_numbers() -> None:
    assert "survive" in EXCLUDED_OPTIONS
