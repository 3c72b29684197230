"""Copies of rank 0's files for ranks that lack them."""

from pathlib import Path

import pytest

from tests.conftest import Programs, Ranks


@pytest.mark.mpi
def test_ranks_that_lack_files_get_copies(ranks: Ranks, programs: Programs, tmp_path: Path) -> None:
    assert "files are copied" in ranks.mpi(3, programs("file_copies.py"), str(tmp_path))
