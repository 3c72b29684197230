"""Losses in mid-run with `--restarts`: the run goes on where hosts answer, to the same bits."""

import json
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PATIENCE
from tests.nodes.conftest import MakeNodes
from tests.nodes.mpi_nodes import INSTALLED, Nodes
from tests.nodes.test_faults import FAULTS, OF_RANK_0, START_S, TIMEOUT_S, epochs_of, wait_for

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(500)]

LOCAL = "/mnt/scratch/checkpoints"
"""A folder that each node has for itself: only rank 0's has checkpoints."""
EPOCHS, STEP_S = 12, 0.25
END_S = 90
"""Seconds from a loss to the end of the run: timeout, hosts that do not answer twice 9 s, a start,
and the epochs that are left."""
SEEDS = range(20)
GONE = ("node killed", "power off", "link down", "link cut")
"""Losses after which a host does not answer."""


def training(folder: Path, *words: object) -> list[str]:
    return [
        *(sys.executable, "-m", "phalanx", "train", "--bitwise", "--dataset", "digits"),
        *("--train-samples", "120", "--validation-samples", "60", "--batch-size", "60"),
        *("--width", "16", "--epochs", str(EPOCHS), "--run-dir", str(folder), *map(str, words)),
    ]


def certificate_in(folder: Path) -> str:
    """Return the hash with which the ranks ended whose records these are."""
    lines = (folder / "rank-0.jsonl").read_text().splitlines()
    last: dict[str, Any] = json.loads(lines[-1])
    digest: str = last["certificate"]["sha256"]
    return digest


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the hash of one process that nobody disturbs."""
    folder = tmp_path_factory.mktemp("truth") / "run"
    subprocess.run(training(folder), check=True, capture_output=True, timeout=90 * PATIENCE)
    return certificate_in(folder)


def lose(nodes: Nodes, name: str, victim: str, delay_s: float, log: Path, truth: str) -> None:
    """Start a run, break the victim, and check that the run ends as it would have."""
    run, fault = nodes.shared / "run", {**FAULTS, **OF_RANK_0}[name]
    hosts = ",".join(f"{node}:1" for node in nodes.nodes)
    words = ("--strategy", "mpi", "--hosts", hosts, "--restarts", 2, "--checkpoint-dir", LOCAL)
    slow = ("--slow-rank", f"0:{STEP_S}", "--timeout-s", TIMEOUT_S * PATIENCE)
    command = training(run, *words, *slow)
    with nodes.start("n0", command, log, environment=INSTALLED) as job:
        begun = wait_for(lambda: epochs_of(log) > 0 or job.poll() is not None, START_S * PATIENCE)
        assert begun and job.poll() is None, log.read_text()
        time.sleep(delay_s)
        fault(nodes, victim)
        lost_at = time.monotonic()
        ended = wait_for(lambda: job.poll() is not None, END_S * PATIENCE)
        said = log.read_text()
        assert ended, f"the command runs on\n{said}"
        print(f"{name} {victim}: ended {time.monotonic() - lost_at:.1f} s after the loss")
    assert job.returncode == 0, said
    record = json.loads((run / "run.json").read_text())
    assert record["outcome"]["status"] == "completed", record["outcome"]
    (restart,) = record["restarts"]
    left = [node for node in nodes.nodes if name not in GONE or node != victim]
    assert list(restart["silent"]) == [node for node in nodes.nodes if node not in left]
    assert restart["ranks"] == len(left)
    assert [host.partition(":")[0] for host in restart["hosts"]] == left
    assert restart["checkpoint"].startswith(LOCAL)
    assert re.search(rf"restart 1 \(at most 2 per hour\): {len(left)} ranks on ", said), said
    assert certificate_in(run / restart["folder"]) == truth
    alive = [node for node in nodes.nodes if nodes.is_alive(node)]
    rest_s = (TIMEOUT_S + 15) * PATIENCE
    gone = wait_for(lambda: not any(nodes.processes(node) for node in alive), rest_s)
    assert gone, {node: nodes.processes(node) for node in alive}


@pytest.mark.parametrize("name", ["node killed", "link cut", "daemon killed"])
def test_a_run_goes_on_after_a_loss(
    make_nodes: MakeNodes, tmp_path: Path, name: str, truth: str
) -> None:
    with make_nodes(3) as nodes:
        lose(nodes, name, "n1", 0.0, tmp_path / "log", truth)


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", [*FAULTS, "launcher killed"])
def test_a_run_goes_on_after_losses_at_random_moments(
    make_nodes: MakeNodes, tmp_path: Path, name: str, seed: int, truth: str
) -> None:
    chosen = random.Random(f"restart {name} {seed}")
    with make_nodes(3) as nodes:
        victim = "n0" if name == "launcher killed" else chosen.choice(["n1", "n2"])
        lose(nodes, name, victim, chosen.uniform(0, 3), tmp_path / "log", truth)
