"""Ranks on nodes that the user, a hostfile or a batch system names, started by one command."""

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from phalanx.jobs.binding import THREAD_POOLS
from tests.conftest import PATIENCE
from tests.nodes.conftest import INSTALLED, Nodes

PHALANX = [sys.executable, "-m", "phalanx"]

pytestmark = pytest.mark.nodes


def phalanx(
    nodes: Nodes, *words: object, environment: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Run a command on n0 with the user's environment, without threads; return its output."""
    unset = [word for name in THREAD_POOLS for word in ("-u", name)]
    command = ["env", *unset, *PHALANX, *map(str, words)]
    done = nodes.run(
        "n0",
        command,
        environment={**INSTALLED, "OF_THE_USER": "a;b 'c'", **environment},
        timeout_s=90 * PATIENCE,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_one_command_starts_ranks_on_named_nodes(
    nodes: Nodes, programs: Callable[[str], Path]
) -> None:
    """Intel MPI took `n1:2` for a name, and had as many ranks on a node as it has cores; Open MPI
    took no variable of the user's along."""
    cores = len(os.sched_getaffinity(0))
    hosts = ",".join(f"{nodes.host(name)}:{n}" for name, n in (("n0", 1), ("n1", 2), ("n2", 1)))
    shown = phalanx(nodes, "launch", "--hosts", hosts, programs("surroundings.py"))
    assert "4 ranks on n0, n1, n2 (--hosts)" in shown
    there = max(1, cores // 2)
    for line in (f"n0 {cores}", *[f"n1 {there}"] * 2, f"n2 {cores}"):
        assert f"{line} a;b 'c'\n" in shown
    assert shown.count(f"n1 {there} a;b") == 2


def test_an_allocation_of_pbs_is_used(nodes: Nodes, programs: Callable[[str], Path]) -> None:
    file = nodes.shared / "pbs"
    file.write_text("n0\nn1\n")
    shown = phalanx(
        *(nodes, "launch", "--threads", 3, programs("surroundings.py")),
        environment={"PBS_NODEFILE": str(file), "PBS_JOBID": "7"},
    )
    assert "2 ranks on n0, n1 (PBS job 7)" in shown
    assert "n0 3 a;b 'c'\nn1 3 a;b 'c'\n" in shown


@pytest.mark.long
def test_gloo_trains_over_nodes(nodes: Nodes) -> None:
    file = nodes.shared / "hosts"
    file.write_text("n0 slots=1 max-slots=2\nn1:1 # the other\n")
    shown = phalanx(
        *(nodes, "train", "--strategy", "gloo", "--hostfile", file, "--model", "mlp"),
        *("--dataset", "digits", "--train-samples", 256, "--validation-samples", 64),
        *("--batch-size", 128, "--epochs", 1, "--threads", 1, "--run-dir", "/mnt/scratch/gloo"),
    )
    assert shown.startswith(f"2 ranks on n0, n1 (--hostfile {file})\n")
    assert "phalanx report /mnt/scratch/gloo" in shown


def test_more_ranks_than_slots(nodes: Nodes) -> None:
    words = ["train", "--strategy", "mpi", "--hosts", "n0:2,n1:2", "--ranks", "5"]
    done = nodes.run("n0", [*PHALANX, *words], timeout_s=60 * PATIENCE)
    assert done.returncode == 2
    assert done.stdout.strip() == (
        "phalanx: --ranks 5: --hosts has 4 slots: n0:2, n1:2; name more slots or start fewer ranks"
    )
