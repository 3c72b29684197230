"""Ranks that are a part of others, and ranks that do not do the same."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from phalanx.records.files import read_run
from tests.conftest import Ranks, long


@pytest.mark.mpi
def test_parts_of_the_ranks_and_mistakes(ranks: Ranks, programs: Callable[[str], Path]) -> None:
    output = ranks.mpi(3, programs("together.py"))
    assert output.count("is through") == 3


@pytest.mark.mpi
@pytest.mark.parametrize("who", [long("one"), "all"])
def test_ranks_leave_their_loop_together(
    who: str, ranks: Ranks, programs: Callable[[str], Path], tmp_path: Path
) -> None:
    """One that leaves alone is named long before the timeout, in a line."""
    began = time.monotonic()
    output = ranks.mpi(2, programs("leaving.py"), who, str(tmp_path / "run"), may_fail=who == "one")
    assert time.monotonic() - began < 50
    outcome = read_run(tmp_path / "run").outcome
    if who == "all":
        assert output.count("has left") == 2
        assert outcome.status == "completed"
    else:
        said = "step 1: rank 1 left its loop after 1 updates, unlike other ranks: end it on all"
        assert f"phalanx: {said}" in output
        assert "Traceback" not in output
        assert outcome.status == "failed" and outcome.error.startswith(said)
