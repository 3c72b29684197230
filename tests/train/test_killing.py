"""Killed again and again, resumed each time: the same files as without; none lost, none left."""

from pathlib import Path

import pytest

from tests.train.killing import CASES, run_case

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(3600)]


@pytest.mark.parametrize(
    ("case", "kills"),
    [("mpi", 3), *(pytest.param(case, 8, marks=pytest.mark.long) for case in CASES)],
)
def test_a_run_survives_its_kills(
    command: list[str], tmp_path: Path, case: str, kills: int
) -> None:
    tally = run_case(case, tmp_path, kills, seed=1, command=command)
    assert not tally.wrong, "\n".join(tally.wrong)
    assert tally.counts["kills"] == kills
    assert tally.counts["hashes compared"]
