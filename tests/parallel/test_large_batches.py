"""LARS, LAMB, clipping, smoothed labels and skipped steps give on every split the parameters of
one process, after steps whose parts are uneven and sometimes empty."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Ranks

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300)]


@pytest.mark.parametrize("count", [3, *(pytest.param(n, marks=pytest.mark.long) for n in (2, 4))])
def test_every_split_learns_what_one_process_learns(
    ranks: Ranks, programs: Callable[[str], Path], tmp_path: Path, count: int
) -> None:
    output = ranks.mpi(count, programs("large_batches.py"), str(tmp_path), timeout_s=280)
    for rank in range(count):
        assert f"rank {rank} of {count} is done" in output, output
