"""What is counted under `torch.distributed`."""

import pytest

from tests.conftest import Programs, Ranks, done

pytestmark = pytest.mark.mpi


def test_one_object_counts_for_all_groups(ranks: Ranks, programs: Programs) -> None:
    assert done(ranks.mpi(3, programs("traffic.py")), 3)
