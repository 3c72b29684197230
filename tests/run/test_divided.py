"""Models that are divided among the ranks of a program end with the parameters of one process."""

from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path

import pytest
import torch

from phalanx.run.strategy import choose_strategy
from tests.conftest import Ranks, long
from tests.run.programs.divided import IN_THE_LOOP, REFUSED, trained

TRUTHS = {"stages": "stages mpi", "texts": "texts server"}
truth_of = cache(lambda name: trained(TRUTHS.get(of := name.split()[0], of + " tensor")))
OF_TWO = (
    *("language tensor", "language zero 2", "layers tensor", "layers zero 3"),
    *("lars tensor", "lars zero 3", "lamb tensor", "lamb zero 2"),
)
OF_STAGES = ("stages pipeline", "stages rounds", "stages zero 3", "texts server", "texts bitwise")
OF_FOUR = ("language dp=2,tp=2", "language shard=2,tp=2", "language zero 3", "layers tensor")


def compare(folder: Path, num_ranks: int, names: Iterable[str]) -> None:
    for name in names:
        truth = truth_of(name)
        for rank in range(num_ranks):
            found = torch.load(folder / f"{rank}.pt")[name]
            assert found.keys() in (truth.keys(), truth.keys() - {"losses", "scores"})
            for key, value in found.items():
                assert (truth[key] - value).abs().max() < 1e-10, (name, rank, key)


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("num_ranks", "names"),
    [
        (2, (*OF_TWO, *OF_STAGES)),
        long(3, ("stages pipeline", "stages mpi", "texts server", "texts bitwise")),
        long(4, ("stages dp=2,pp=2", "texts server", "texts bitwise")),
        long(
            3, ("language zero 3", "layers zero 3", "language zero 2", "lars zero 3", "lamb zero 2")
        ),
        long(4, OF_FOUR),
        long(4, ("language dp=2,shard=2", "language zero 2", "language tensor")),
    ],
)
def test_parameters_losses_and_scores_are_those_of_one_process(
    num_ranks: int,
    names: tuple[str, ...],
    ranks: Ranks,
    programs: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    ranks.mpi(num_ranks, programs("divided.py"), str(tmp_path), *names)
    compare(tmp_path, num_ranks, names)


@pytest.mark.parametrize(
    ("name", "mesh", "stages"),
    [("mesh", "pp=2,dp=2", 2), ("mesh", "pp=1,dp=4", 1), ("pipeline", None, 4), ("mpi", None, 1)],
)
def test_a_pipeline_alone_cuts_its_micro_batches(name: str, mesh: str | None, stages: int) -> None:
    """A mesh that names one stage lost its micro_batches=."""
    choose = partial(choose_strategy, name, {} if mesh is None else {"mesh": mesh})
    further = {
        "num_optimizers": 1,
        "clip_norm": None,
        "device": torch.device("cpu"),
        "is_bitwise": False,
    }
    assert choose(num_ranks=4, **further).mesh.pp == stages
    if mesh is None:
        assert choose(num_ranks=1, **further).mesh.pp == 1


@pytest.mark.mpi
def test_a_run_goes_on_under_other_strategies(
    ranks: Ranks, programs: Callable[[str], Path], tmp_path: Path
) -> None:
    names = ("language tensor", "language zero 3", "language zero 2", "language tensor")
    ranks.mpi(2, programs("divided.py"), str(tmp_path), "resumed", *names)
    compare(tmp_path, 2, names[-1:])


@pytest.mark.mpi
def test_what_does_not_fit_is_refused_before_the_first_step(
    ranks: Ranks, programs: Callable[[str], Path], tmp_path: Path
) -> None:
    assert ranks.mpi(2, programs("divided.py"), str(tmp_path), "refused").count("all refused") == 2


@pytest.mark.mpi
@pytest.mark.parametrize("name", IN_THE_LOOP)
def test_a_model_that_cannot_be_divided_so_is_refused_in_its_first_step(
    name: str, ranks: Ranks, programs: Callable[[str], Path], tmp_path: Path
) -> None:
    output = ranks.mpi(2, programs("divided.py"), str(tmp_path), "refused", name, may_fail=True)
    assert REFUSED[name][1] in output
