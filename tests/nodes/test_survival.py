"""Ranks on two nodes are killed, and the others go on: `phalanx launch` and `train --survive`."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.jobs.installation import find_mpi
from tests.conftest import PATIENCE
from tests.nodes.mpi_nodes import INSTALLED, ROOT, Nodes
from tests.nodes.test_unshared import LOCAL
from tests.survival.records import check, read_run
from tests.survival.test_train import EPOCHS, WORDS, train

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(300)]

PROGRAM = ROOT / "tests" / "survival" / "programs" / "all_reduces.py"
NOTICE_S = 3.0
"""On any machine; docs/survival.md has what is measured."""


@pytest.mark.parametrize(
    ("how", "seed", "kills"),
    [
        ("messages", 11, 2),
        ("memory", 4, 1),
        *(
            pytest.param(how, seed, 1 + seed % 3, marks=pytest.mark.long)
            for how in ("messages", "memory")
            for seed in range(200, 210)
        ),
    ],
)
def test_survivors_on_two_nodes_go_on(nodes: Nodes, how: str, seed: int, kills: int) -> None:
    """`memory` is the best route here: lanes between the nodes, shared memory in them."""
    if find_mpi(os.environ).vendor != "openmpi":
        pytest.skip("only Open MPI goes on when a rank dies")
    folder: Path = nodes.shared / f"{how}-{seed}"
    folder.mkdir()
    words = [how, str(seed), str(kills), "1.5", str(folder)]
    hosts = ",".join(f"{nodes.host(node)}:2" for node in nodes.nodes[:2])
    launch = [*("-m", "phalanx", "launch", "--survive", "--no-preflight", "--hosts", hosts)]
    options = ["--threads", "1", "--log-dir", str(folder / "logs")]
    done = nodes.run(
        "n0",
        [sys.executable, *launch, *options, str(PROGRAM), *words],
        environment=INSTALLED,
        timeout_s=100 * PATIENCE,
    )
    logs = [path.read_text() for path in (folder / "logs").glob("rank-*.log")]
    assert done.returncode == 0, "\n".join([done.stdout, *logs])
    ran = read_run(folder)
    died = sorted(ran.killed)
    assert set(ran.survivors) == set(range(4)) - set(died)
    assert f"{', '.join(map(str, died))} died; the other ranks continued to the end" in done.stdout
    for node in nodes.nodes[:2]:
        assert not nodes.processes(node)
        assert "segment" not in nodes.run(node, ["ls", "/dev/shm"]).stdout
    check(ran, notice_s=NOTICE_S)
    for name, seconds in (
        ("notice", ran.seconds_to_notice()),
        ("recover", ran.seconds_to_recover()),
    ):
        print(f"{how} seed {seed}: {name} {[round(1e3 * each) for each in seconds]} ms")


@pytest.mark.parametrize("strategy", ["mpi", "zero"])
def test_a_training_on_two_nodes_goes_on_without_its_dead(
    command: list[str], nodes: Nodes, tmp_path: Path, strategy: str
) -> None:
    """Also without rank 0, though its records and those of the others lie on different disks."""
    if find_mpi(os.environ).vendor != "openmpi":
        pytest.skip("only Open MPI goes on when a rank dies")
    alone = train(command, tmp_path, "--bitwise")
    assert alone.returncode == 0, alone.stderr
    deaths = [(0, "evaluation", 2), (3, "evaluation", 5)]
    hosts = ",".join(f"{nodes.host(node)}:2" for node in nodes.nodes[:2])
    words = ["--survive", "--no-preflight", "--strategy", strategy, "--hosts", hosts]
    words += ["--zero-stage", "1"] if strategy == "zero" else []
    folder = f"{LOCAL}/survived-{strategy}"
    done = nodes.run(
        "n0",
        [sys.executable, "-m", "phalanx", *WORDS, *words, "--run-dir", folder],
        environment={**INSTALLED, "DEATHS": json.dumps(deaths)},
        timeout_s=100 * PATIENCE,
    )
    assert done.returncode == 0, done.stdout
    (expected,) = re.findall("SHA-256 ([0-9a-f]{64})", alone.stdout)
    assert re.findall("SHA-256 ([0-9a-f]{64})", done.stdout) == [expected]
    epochs = re.findall(r"^epoch (\d+)/", done.stdout, re.MULTILINE)
    assert epochs == [str(number) for number in range(1, EPOCHS + 1)], done.stdout
    record = nodes.run("n0", ["cat", f"{folder}/run.json"]).stdout
    outcome = json.loads(record)["outcome"]
    assert outcome["status"] == "completed" and outcome["lost"] == [0, 3]
    for node in nodes.nodes[:2]:
        assert not nodes.processes(node)
        assert "segment" not in nodes.run(node, ["ls", "/dev/shm"]).stdout


def test_a_stopped_rank_is_killed_on_its_node(nodes: Nodes, tmp_path: Path) -> None:
    """Two ranks, of which one is on each node; the reports of the others come by the launcher."""
    if find_mpi(os.environ).vendor != "openmpi":
        pytest.skip("only Open MPI goes on when a rank dies")
    program, folder = ROOT / "tests" / "survival" / "programs" / "training.py", nodes.shared / "f"
    folder.mkdir()
    hosts = ",".join(f"{nodes.host(node)}:2" for node in nodes.nodes[:2])
    words = ["--survive", "--patience", "1.5", "--no-preflight", "--hosts", hosts, "--threads", "1"]
    fault = ["2", "2", "0.5", "stop", "loop"]
    done = nodes.run(
        "n0",
        [
            *(sys.executable, "-m", "phalanx", "launch", *words, "--log-dir", f"{LOCAL}/stopped"),
            *(str(program), str(folder), *fault),
        ],
        environment=INSTALLED,
        timeout_s=100 * PATIENCE,
    )
    assert done.returncode == 0, done.stdout
    for rank, node in ((0, "n0"), (3, "n1")):
        assert (
            f"rank {rank} ({node}) was killed after its peers had waited 1.5 s for it"
            in done.stdout
        )
    subprocess.run(
        [sys.executable, str(program), str(tmp_path), "0", "0", "0"], check=True, timeout=60
    )
    truth = json.loads((tmp_path / "result-0.json").read_text())
    results = [json.loads(path.read_text()) for path in sorted(folder.glob("result-*.json"))]
    assert results == [truth, truth]
    for node in nodes.nodes[:2]:
        assert not nodes.processes(node)
