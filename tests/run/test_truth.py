"""A program's parameters on several ranks are those of one process."""

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import pytest
import torch

from tests.conftest import Ranks, long
from tests.run.programs.truth import CASES, trained


@pytest.mark.mpi
@pytest.mark.parametrize("num_ranks", [2, 3, long(4)])
def test_programs_agree_with_one_process(
    num_ranks: int, ranks: Ranks, programs: Callable[[str], Path], tmp_path: Path
) -> None:
    ranks.mpi(num_ranks, programs("truth.py"), str(tmp_path))
    compare(tmp_path, num_ranks)


@pytest.mark.mpi
def test_torchrun_starts_the_same_program(
    ranks: Ranks, programs: Callable[[str], Path], tmp_path: Path
) -> None:
    names = ("dropout", "shared", "gloo", "zero")  # one for each way in which ranks meet
    ranks.torchrun(2, programs("truth.py"), str(tmp_path), *names)
    compare(tmp_path, 2, names)


truth_of = cache(trained)


def compare(tmp_path: Path, num_ranks: int, names: Iterable[str] = CASES) -> None:
    for name in names:
        truth = truth_of(name)
        for rank in range(num_ranks):
            found = torch.load(tmp_path / f"{rank}.pt")[name]
            for key, value in truth.items():
                if key == "scores" or value.is_floating_point() or value.is_complex():
                    assert (found[key] - value).abs().max() < 1e-10, (name, rank, key)
