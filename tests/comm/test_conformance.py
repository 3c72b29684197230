"""The same routine on 1, 2, 3 and 4 ranks of whatever MPI this environment has."""

import re
import time

import pytest

from tests.conftest import Programs, Ranks, done, long

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("count", [1, long(2), 3, long(4)])
def test_every_operation(ranks: Ranks, programs: Programs, count: int) -> None:
    assert done(ranks.mpi(count, programs("conformance.py")), count)


@pytest.mark.parametrize("collective", ["barrier", "all-reduce"])
def test_a_timeout_names_who_is_missing(ranks: Ranks, programs: Programs, collective: str) -> None:
    began = time.monotonic()
    output = ranks.mpi(3, programs("late.py"), collective, "1", may_fail=True)
    for rank in (0, 2):
        # its own timeout, or that of the other, who was first and said so
        assert re.search(rf"rank {rank} says: (rank \d failed: )?rank \d waited 1 s in", output)
    # no more than the name of the collective and the rank: some launchers join lines
    assert (
        len(
            re.findall(
                r"waited 1 s in [a-z\- ()]+(?: number \d+ of group world)? for rank 1(?!\d|,)",
                output,
            )
        )
        == 2
    )
    assert collective in output
    assert time.monotonic() - began < 30
