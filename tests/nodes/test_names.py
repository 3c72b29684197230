"""Nodes whose names do not resolve, or resolve to the loopback as on Debian."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.nodes.conftest import MakeNodes

pytestmark = pytest.mark.nodes

PARTS = ["mpi sums", "gloo beside mpi sums", "a later group sums", "gloo by mpi:// sums"]
DEBIAN = "127.0.0.1 localhost\n127.0.1.1 n0\n127.0.1.1 n1\n"
VARIABLES = {"I_MPI_HYDRA_IFACE": "eth0"}
"""Else the mpiexec of Intel MPI looks up its own node's name."""


def test_groups_need_no_names_of_hosts(
    make_nodes: MakeNodes, programs: Callable[[str], Path]
) -> None:
    with make_nodes(2, names_resolve=False) as nodes:
        for hosts in (None, DEBIAN):
            if hosts is not None:
                (nodes.state / "hosts").write_text(hosts)
            folder = f"/mnt/scratch/run-{hosts is None}"
            output = nodes.run_ranks(programs("names.py"), folder, environment=VARIABLES)
            shown = output.splitlines()
            assert [line for line in shown if line in PARTS] == PARTS, output
            assert "phalanx.start trains" in shown
            assert "cannot be retrieved" not in output
