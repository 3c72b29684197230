"""Parameters that exist once a node, over several nodes."""

import pytest

from tests.nodes.mpi_nodes import ROOT, Nodes

pytestmark = pytest.mark.nodes

PROGRAM = ROOT / "tests" / "parallel" / "programs" / "shared_over_nodes.py"


@pytest.mark.parametrize(("num_nodes", "local_ranks"), [(2, 2), (3, 1)])
def test_ranks_sum_their_shares_by_lanes(nodes: Nodes, num_nodes: int, local_ranks: int) -> None:
    """What one process computes, with the same bits on all nodes; to the byte as expected."""
    output = nodes.run_ranks(PROGRAM, num_nodes=num_nodes, local_ranks=local_ranks)
    for rank in range(num_nodes * local_ranks):
        assert f"rank {rank} of {num_nodes * local_ranks} is done" in output, output
    on_node = "2(k−1)/k · 8Ψ + " if local_ranks > 1 else ""
    assert f"adam, 100000: fused lanes, {on_node}2(m−1)/m · 8Ψ/k" in output
