"""Ranks that are a part of others, and ranks that do not do the same."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Ranks


@pytest.mark.mpi
def test_parts_of_the_ranks_and_mistakes(ranks: Ranks, programs: Callable[[str], Path]) -> None:
    output = ranks.mpi(3, programs("together.py"))
    assert output.count("is through") == 3
