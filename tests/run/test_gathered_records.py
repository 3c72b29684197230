"""Records of ranks that lack rank 0's folder, which talk to it by MPI or by Gloo."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Ranks


@pytest.mark.mpi
@pytest.mark.parametrize("what", ["mpi", "gloo"])
def test_records_come_to_rank_0_once(
    ranks: Ranks, programs: Callable[[str], Path], tmp_path: Path, what: str
) -> None:
    words = (programs("gathered.py"), str(tmp_path), what)
    output = ranks.mpi(3, *words) if what == "mpi" else ranks.torchrun(3, *words)
    assert all(f"rank {rank} has sent its records" in output for rank in range(3)), output
