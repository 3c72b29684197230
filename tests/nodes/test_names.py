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


def test_errors_name_rank_and_host(make_nodes: MakeNodes, programs: Callable[[str], Path]) -> None:
    with make_nodes(2) as nodes:
        output = nodes.run_ranks(programs("errors.py"), local_ranks=2)
    said: dict[str, dict[int, str]] = {}
    for line in output.splitlines():
        if line.count(": ") < 2:
            continue  # of the launcher
        part, rank, text = line.split(": ", 2)
        said.setdefault(part, {})[int(rank)] = text
    hosts = ["n0", "n0", "n1", "n1"]
    for rank in range(3):
        own = f"rank {rank} ({hosts[rank]})"
        assert said["late"][rank] == (
            f"{own} waited 1 s in barrier number 2 of group all for rank 3 (n1)"
        )
    for rank in (0, 1, 3):
        assert said["failed"][rank] == "rank 2 (n1) failed: no such luck"
    assert said["node"][2] == (
        "rank 0 (n1) waited 1 s in barrier number 2 of group node for rank 1 (n1)"
    )
    call = "all_reduce(float64, {} elements, SUM)"
    assert set(said["mismatch"].values()) == {
        "collective number 1 of group world: "
        f"ranks 0 (n0), 1 (n0), 2 (n1) called {call.format(8)}, rank 3 (n1) called {call.format(9)}"
    }
    assert "rank 1 (n1) in receive from rank 0 (n0), tag 0" in said["message"][2]
    assert "from rank 0 (n0) and got" in said["message"][2]
