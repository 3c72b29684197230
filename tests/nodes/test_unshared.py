"""Folders that only rank 0's node has: checkpoints, and the one to resume from."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import long
from tests.nodes.conftest import Nodes

pytestmark = pytest.mark.nodes

LOCAL = "/mnt/scratch"
"""A folder that each node has for itself."""
EVERYWHERE = ("mpi", "shared", "local", "zero1", "zero2", "zero3", "tensor", "pipeline")
COMPRESSED = ("topk", "int8", "powersgd")


@pytest.mark.parametrize(
    ("local_ranks", "cases"),
    [
        (2, ("shared", "zero3", "topk", "mesh")),
        long(1, (*EVERYWHERE, *COMPRESSED, "gloo", "server")),
        long(2, (*EVERYWHERE, *COMPRESSED, "mesh")),
    ],
)
def test_a_run_resumes_from_a_checkpoint_of_one_node(
    nodes: Nodes, programs: Callable[[str], Path], local_ranks: int, cases: tuple[str, ...]
) -> None:
    """And ends with the very parameters of one that nobody disturbed."""
    folder = f"{LOCAL}/checkpoints-{local_ranks}-{len(cases)}"
    program = programs("unshared_checkpoints.py")
    printed = nodes.run_ranks(program, folder, *cases, local_ranks=local_ranks, timeout_s=240)
    lines = re.findall(r"^case (\w+): (\d+) files, distance 0\.0$", printed, re.MULTILINE)
    ranks = 2 * local_ranks
    keeps = {*COMPRESSED, "local"}
    expected = {name: 5 + ranks * (name in keeps) for name in cases}
    assert {name: int(number) for name, number in lines} == expected, printed
    assert f"on n0, which n1 (rank{'s 2, 3' if ranks == 4 else ' 1'}) does not" in printed
    left = nodes.run("n1", ["sh", "-c", f"ls -d {folder}/*/*/saved /tmp/phalanx-job-*"])
    assert left.stdout.count("No such file") == 2, left.stdout


def test_a_program_resumes_from_a_checkpoint_of_one_node(
    nodes: Nodes, programs: Callable[[str], Path]
) -> None:
    """And is refused where a node has a newer checkpoint than rank 0 sees: it would begin anew."""
    folder = f"{LOCAL}/program"
    printed = nodes.run_ranks(programs("unshared_program.py"), folder, local_ranks=2)
    assert re.findall(r"^case (\w+): (\w+)$", printed, re.MULTILINE) == [
        ("mpi", "True"),
        ("zero", "True"),
    ], printed
    told = f"checkpoints in {folder}/{{}}: rank 2 (n1) sees epoch-0002, and rank 0 (n0) {{}}: start"
    for name, first in (("moved", "epoch-0001"), ("left", "none")):
        for host in ("n0", "n1"):
            line = f"{name} {host}: {told.format(name, first)} the run with n1 as its first node"
            assert printed.count(line) == 2, printed


def test_nodes_train_on_data_that_one_of_them_has(
    nodes: Nodes, programs: Callable[[str], Path]
) -> None:
    folder, shared = f"{LOCAL}/data", nodes.shared / "data"
    shared.mkdir()
    printed = nodes.run_ranks(programs("unshared_data.py"), folder, str(shared), local_ranks=2)
    assert "same {'pack': True, 'fashion': True}" in printed
    lacks = f"--data {folder}/pack: n1 (ranks 2, 3) has no such folder, but n0 (rank 0) has: "
    for host in ("n0", "n1"):
        assert printed.count(f"refused {host}: {lacks}--stage DIR sends it to DIR on the") == 2
        assert printed.count(f"too small {host}: {lacks}a node that lacks it needs all of it") == 2
    assert f"n1 (ranks 2, 3) had no such folder, and got a copy in --stage {folder}" in printed
    left = nodes.run("n1", ["sh", "-c", f"ls {folder}/stage; ls -d /tmp/phalanx-job-*"])
    assert left.stdout.count("phalanx-") == left.stdout.count("cannot access"), left.stdout
