"""Gradients summed while the backward pass runs: the truth on 1 to 4 ranks, and what ends it."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Ranks

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("count", [1, 2, 3, pytest.param(4, marks=pytest.mark.long)])
def test_parameters_are_those_of_one_process(
    ranks: Ranks, programs: Callable[[str], Path], count: int
) -> None:
    output = ranks.mpi(count, programs("bucketed_reducer.py"), "truth")
    assert len(re.findall(rf"rank \d of {count} is done", output)) == count


def test_what_ends_an_exchange(ranks: Ranks, programs: Callable[[str], Path]) -> None:
    output = ranks.mpi(3, programs("bucketed_reducer.py"), "faults")
    assert len(re.findall(r"rank \d of 3 is done", output)) == 3
