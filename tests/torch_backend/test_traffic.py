"""What is counted under `torch.distributed`."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Ranks, done

pytestmark = pytest.mark.mpi


def test_one_object_counts_for_all_groups(ranks: Ranks, programs: Callable[[str], Path]) -> None:
    assert done(ranks.mpi(3, programs("traffic.py")), 3)
