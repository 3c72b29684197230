"""Every scheme gives the parameters of one process, for any number of ranks and layers, and moves
the bytes that its formula says."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Ranks

pytestmark = pytest.mark.mpi


def test_every_scheme_agrees_with_one_process(
    ranks: Ranks, programs: Callable[[str], Path]
) -> None:
    output = ranks.mpi(8, programs("schemes.py"), "2", "3", "4", "8")
    assert "all schemes agree" in output
