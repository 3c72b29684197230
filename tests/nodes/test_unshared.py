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
EVERYWHERE = ("mpi", "local", "zero1", "zero2", "zero3", "tensor", "pipeline")
COMPRESSED = ("topk", "int8", "powersgd")


@pytest.mark.parametrize(
    ("local_ranks", "cases"),
    [
        (2, ("zero3", "topk", "mesh")),
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
    expected = {name: 3 + ranks * (name in keeps) for name in cases}
    assert {name: int(number) for name, number in lines} == expected, printed
    assert f"on n0, a folder that n1 (rank{'s 2, 3' if ranks == 4 else ' 1'}) does not" in printed
    left = nodes.run("n1", ["sh", "-c", f"ls -d {folder}/*/*/saved /tmp/phalanx-job-*"])
    assert left.stdout.count("No such file") == 2, left.stdout
