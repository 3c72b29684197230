import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Ranks


@pytest.mark.parametrize(("count", "algorithm"), [(2, "auto"), (3, "direct")])
@pytest.mark.mpi
def test_every_compressor_sums_and_trains(
    ranks: Ranks,
    programs: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    algorithm: str,
) -> None:
    """In shared memory and on messages."""
    monkeypatch.setenv("PHALANX_ALL_REDUCE", algorithm)
    output = ranks.mpi(count, programs("compressors.py"))
    assert len(re.findall(rf"rank \d of {count} is done", output)) == count
