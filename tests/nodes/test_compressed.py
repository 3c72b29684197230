"""Compressed sums over nodes of several ranks: what leaves a node is the sum of its ranks."""

import pytest

from tests.nodes.mpi_nodes import ROOT, Nodes

pytestmark = pytest.mark.nodes

PROGRAM = ROOT / "tests" / "nodes" / "programs" / "compressed.py"


def test_nodes_send_what_one_rank_would(nodes: Nodes) -> None:
    output = nodes.run_ranks(PROGRAM, num_nodes=2, local_ranks=2)
    for rank in range(4):
        assert f"rank {rank} of 4 is done" in output, output
