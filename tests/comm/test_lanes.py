"""Several nodes, pretended: ranks of a node through memory, nodes among themselves by messages."""

import pytest

from phalanx.comm.kernels import compiled
from tests.conftest import Programs, Ranks, done, long


@pytest.mark.mpi
@pytest.mark.skipif(compiled() is None, reason="no C kernels were built")
@pytest.mark.parametrize(
    "nodes", ["0 0 1 1", "0 1 0 1", "0 0 1", "0 1 2", long("0 0 1 1 2 2"), long("0 1")]
)
def test_lanes_through_memory(ranks: Ranks, programs: Programs, nodes: str) -> None:
    words = nodes.split()
    assert done(ranks.mpi(len(words), programs("nodes.py"), *words), len(words))


@pytest.mark.mpi
@pytest.mark.skipif(compiled() is None, reason="no C kernels were built")
def test_ranks_that_wait_in_memory_are_not_missing(ranks: Ranks, programs: Programs) -> None:
    assert done(ranks.mpi(4, programs("late_lanes.py")), 4)
