"""Copies in the memory of nodes: a run goes on from that of another node than it lost."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from phalanx.jobs.node_copies import PREFIX
from tests.conftest import PATIENCE
from tests.nodes.conftest import MakeNodes
from tests.nodes.mpi_nodes import INSTALLED, Nodes
from tests.nodes.test_faults import FAULTS, START_S, TIMEOUT_S, epochs_of, wait_for
from tests.nodes.test_restarts import END_S, LOCAL, certificate_in

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(500)]

EPOCHS, STEPS, STEP_S, EVERY_S = 4, 10, 0.2, 0.3


def training(folder: Path, *words: object) -> list[str]:
    return [
        *(sys.executable, "-m", "phalanx", "train", "--bitwise", "--dataset", "digits"),
        *("--train-samples", str(12 * STEPS), "--validation-samples", "60", "--batch-size", "12"),
        *("--width", "16", "--epochs", str(EPOCHS), "--run-dir", str(folder), *map(str, words)),
    ]


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the hash of one process that nobody disturbs."""
    folder = tmp_path_factory.mktemp("truth") / "run"
    subprocess.run(training(folder), check=True, capture_output=True, timeout=90 * PATIENCE)
    return certificate_in(folder)


def copies_on(nodes: Nodes, node: str) -> str:
    """Return the names of the copies in the memory of a node, one a line."""
    words = ["sh", "-c", f"ls -d /dev/shm/{PREFIX}*/*/epoch-* || true"]
    return nodes.run(node, words).stdout


def restarted(
    nodes: Nodes, log: Path, hosts: str, fault: str, victim: str, *, emptied: str | None = None
) -> dict[str, Any]:
    """Start a run, break the victim when all nodes have copies, and return the restart.

    emptied: node that loses its copies first.
    """
    run = nodes.shared / "run"
    words = ("--strategy", "mpi", "--hosts", hosts, "--restarts", 1, "--checkpoint-dir", LOCAL)
    slow = ("--slow-rank", f"0:{STEP_S}", "--timeout-s", TIMEOUT_S * PATIENCE)
    often = ("--memory-checkpoint-seconds", EVERY_S)
    command = training(run, *words, *slow, *often)
    with nodes.start("n0", command, log, environment=INSTALLED) as job:
        begun = wait_for(lambda: epochs_of(log) > 0 or job.poll() is not None, START_S * PATIENCE)
        assert begun and job.poll() is None, log.read_text()
        if emptied is not None:
            nodes.run(emptied, ["sh", "-c", f"rm -r /dev/shm/{PREFIX}*/*"])
        time.sleep(4 * STEP_S)
        for node in nodes.nodes:
            assert ("epoch-0001" in copies_on(nodes, node)) == (node != emptied), log.read_text()
        FAULTS[fault](nodes, victim)
        assert wait_for(lambda: job.poll() is not None, END_S * PATIENCE), log.read_text()
    said = log.read_text()
    assert job.returncode == 0, said
    (restart,) = json.loads((run / "run.json").read_text())["restarts"]
    assert f"resuming from the copy in the memory of {restart['memory_of']}, step 1" in said
    for node in nodes.nodes:
        if nodes.is_alive(node):
            assert PREFIX not in nodes.run(node, ["ls", "-a", "/dev/shm"]).stdout
    found: dict[str, Any] = restart
    return found


def test_a_run_whose_checkpoints_are_lost_with_their_node_goes_on_from_another_nodes_memory(
    make_nodes: MakeNodes, tmp_path: Path, truth: str
) -> None:
    with make_nodes(3) as nodes:
        log = tmp_path / "log"
        restart = restarted(nodes, log, "n1:1,n2:1,n0:1", "node killed", "n1")
        assert list(restart["silent"]) == ["n1"]
        assert restart["memory_of"] in ("n0", "n2")
        assert "; there is none on the disk" in log.read_text()
        assert certificate_in(nodes.shared / "run" / "restart-1") == truth


def test_a_copy_comes_from_the_only_node_that_has_it(
    make_nodes: MakeNodes, tmp_path: Path, truth: str
) -> None:
    with make_nodes(2) as nodes:
        log = tmp_path / "log"
        restart = restarted(nodes, log, "n0:1,n1:1", "rank killed", "n1", emptied="n0")
        assert restart["memory_of"] == "n1"
        assert "; the newest on the disk is of step 10" in log.read_text()
        assert certificate_in(nodes.shared / "run" / "restart-1") == truth
