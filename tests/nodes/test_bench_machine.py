"""`phalanx bench machine --hosts`: the machine file of nodes whose links are limited."""

import sys
from pathlib import Path

import pytest

from phalanx.plan.machine import Cluster, read_machine
from phalanx.plan.profile import write_profile
from tests.conftest import PATIENCE
from tests.nodes.conftest import MakeNodes
from tests.nodes.mpi_nodes import INSTALLED, Nodes
from tests.plan.made_profile import profile

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(400)]

PHALANX = [sys.executable, "-m", "phalanx"]
LINK_BYTES_PER_S = 100e6 / 8
DELAY_S = 4e-3


def run(nodes: Nodes, node: str, *words: str) -> tuple[int, str]:
    line = [*PHALANX, *words]
    done = nodes.run(node, line, environment=INSTALLED, timeout_s=120 * PATIENCE)
    return done.returncode, done.stdout


def measured(nodes: Nodes, node: str, hosts: str, folder: Path) -> Cluster:
    words = ["m.yaml", "--hosts", hosts, "--sizes", "64KB", "--overwrite"]
    code, said = run(nodes, node, "bench", "machine", *words)
    assert code == 0, said
    path = folder / "m.yaml"
    path.write_text(nodes.run(node, ["cat", "m.yaml"]).stdout)
    return read_machine(str(path))


def test_links_between_nodes_are_measured(make_nodes: MakeNodes, tmp_path: Path) -> None:
    with make_nodes(3, rate="100mbit") as nodes:
        found = measured(nodes, "n0", "n0:2,n1:2", tmp_path)
        assert (found.name, found.nodes, found.ranks_per_node) == ("n0", 2, 2)
        network = found.network
        assert network is not None
        assert network.bandwidth_bytes_per_s == pytest.approx(LINK_BYTES_PER_S, rel=0.1)
        assert 0 < network.bandwidth_spread < 0.1
        assert network.latency_s is not None and network.latency_s < DELAY_S
        assert network.send_cpu_s_per_mb is not None and found.sum_cpu_s_per_mb is not None
        assert set(found.contention) == {1, 2}
        assert {each.ranks for each in found.all_reduce} == {2}
        assert found.unknown == []

        folder = nodes.shared / "profile"
        folder.mkdir()
        write_profile(folder, profile())
        words = ["--machine", "m.yaml", "--ranks", "1,2,4"]
        code, said = run(nodes, "n0", "plan", str(folder), *words)
        assert code == 0, said
        assert "n0: 2 nodes × 2 ranks, 0.01" in said

        # A kernel may have no delays; then the latency is that of the link, below the delay.
        delay = ["tc", "qdisc", "replace", "dev", "eth0", "root", "netem", "delay", f"{DELAY_S}s"]
        is_delayed = all(nodes.run(node, delay).returncode == 0 for node in nodes.nodes)
        # The ranks are on other nodes than the command, which has none of their files.
        found = measured(nodes, "n2", "n0:1,n1:1", tmp_path)
        assert (found.name, found.nodes, found.ranks_per_node) == ("n0", 2, 1)
        network = found.network
        assert network is not None and network.latency_s is not None
        assert network.latency_s // DELAY_S == is_delayed
        assert found.memory_bytes_per_s


def test_what_a_machine_file_does_not_describe_is_refused(nodes: Nodes) -> None:
    code, said = run(nodes, "n0", "bench", "machine", "--hosts", "n0:1,n1:2")
    assert (code, "names nodes of 1 and of 2 ranks" in said) == (2, True), said
    code, said = run(nodes, "n0", "bench", "machine", "--hosts", "n0:1,n1:1", "--ranks", "4")
    assert (code, "names 1 on each node: leave --ranks out" in said) == (2, True), said
    code, said = run(nodes, "n0", "bench", "machine", "--hosts", "n0:1,nowhere:1")
    assert (code, "nowhere: " in said) == (2, True), said
