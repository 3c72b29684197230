"""The virtual nodes themselves: what a node has of its own, and what its faults look like."""

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.nodes.conftest import MakeNodes
from tests.nodes.mpi_nodes import Nodes

NEVER_ENDING = ["sleep", "86399.25"]

pytestmark = pytest.mark.nodes


def output(nodes: Nodes, node: str, line: str) -> str:
    done = nodes.run(node, ["sh", "-c", line], timeout_s=20)
    assert done.returncode == 0, done.stdout
    return done.stdout


def answers(nodes: Nodes, node: str) -> bool:
    connect = f"exec 3<> /dev/tcp/{nodes.address(node)}/22"
    return nodes.run("n0", ["bash", "-c", connect], timeout_s=1.5).returncode == 0


def test_nodes_reach_each_other_and_share_only_what_is_kept(nodes: Nodes) -> None:
    assert output(nodes, "n0", "for n in n0 n1 n2; do ssh $n hostname; done") == "n0\nn1\nn2\n"
    assert output(nodes, "n0", f"ssh {nodes.address('n1')} hostname") == "n1\n"
    private = ["/mnt/scratch", "/dev/shm", "/tmp", "/root/.cache", "/run"]
    output(nodes, "n1", f"for d in {' '.join(private)}; do echo x > $d/x; done")
    assert output(nodes, "n0", f"find {' '.join(private)} -name x") == ""
    output(nodes, "n1", f"echo seen > {nodes.shared}/x")
    assert output(nodes, "n2", f"cat {nodes.shared}/x") == "seen\n"
    assert (nodes.shared / "x").read_text() == "seen\n"
    assert "PYTHONPATH=" in output(nodes, "n0", "ssh n1 env")


def test_mpi_sums_over_two_nodes(nodes: Nodes, programs: Callable[[str], Path]) -> None:
    printed = nodes.run_ranks(programs("all_reduce.py")).splitlines()
    assert printed[-2:] == ["0 n0 3", "1 n1 3"]  # prterun may warn of setpgid above


def test_a_program_that_takes_too_long_is_ended(nodes: Nodes) -> None:
    assert nodes.run("n0", ["sleep", "50"], timeout_s=0.2).returncode == 124


def pids_of(words: list[str]) -> list[int]:
    command = "\0".join([*words, ""]).encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += [int(path.parent.name)] * (path.read_bytes() == command)
    return found


def test_faults_and_end(make_nodes: MakeNodes, tmp_path: Path) -> None:
    devices = os.listdir("/sys/class/net")
    with make_nodes(3, names_resolve=False) as nodes:
        assert nodes.run("n0", ["getent", "hosts", "n1"]).returncode
        assert nodes.host("n1") == nodes.address("n1") == "10.77.0.2"
        for broken, mended in (("down", "up"), ("cut", "mended")):
            nodes.set_link("n2", broken)
            assert not answers(nodes, "n2")
            nodes.set_link("n2", mended)
            assert answers(nodes, "n2")
        nodes.kill("n1")
        assert nodes.run("n0", ["ssh", nodes.address("n1"), "true"]).returncode == 255
        nodes.power_off("n2")
        assert not answers(nodes, "n2")
        with nodes.start("n0", NEVER_ENDING, tmp_path / "log"):
            while not pids_of(NEVER_ENDING):
                time.sleep(0.02)
        assert pids_of(NEVER_ENDING), "only the end of the nodes ends what a test has left"
    assert not pids_of(NEVER_ENDING)
    assert not Path(f"/proc/{nodes.supervisor}").exists()
    assert os.listdir("/sys/class/net") == devices


def test_a_limited_link_takes_its_time(make_nodes: MakeNodes) -> None:
    with make_nodes(2, rate="80mbit") as nodes:
        began = time.monotonic()
        output(nodes, "n0", "head -c 20M /dev/zero | ssh n1 'cat > /dev/null'")
        assert time.monotonic() - began > 20 * 2**20 * 8 / 80e6
