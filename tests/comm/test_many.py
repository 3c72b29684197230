"""More ranks than cores: they leave the cores to those who have work to do."""

import pytest

from tests.conftest import Programs, Ranks, done

pytestmark = [pytest.mark.mpi, pytest.mark.alone]


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.long)])
def test_who_waits_takes_no_core(ranks: Ranks, programs: Programs, count: int) -> None:
    assert done(ranks.mpi(count, programs("waiting.py")), count)


def test_sixteen_ranks(ranks: Ranks, programs: Programs) -> None:
    assert done(ranks.mpi(16, programs("many.py")), 16)
