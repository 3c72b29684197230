import psutil
import pytest

from tests.conftest import Programs, Ranks, done


@pytest.mark.mpi
@pytest.mark.long
@pytest.mark.skipif(psutil.virtual_memory().available < 12 * 2**30, reason="takes 10 GB of memory")
def test_more_than_two_to_the_31_elements(ranks: Ranks, programs: Programs) -> None:
    assert done(ranks.mpi(2, programs("large.py"), timeout_s=600), 2)
