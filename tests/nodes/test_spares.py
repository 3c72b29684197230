"""Spares on two or three nodes take the places of ranks that die on any of them."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from phalanx.launch.installation import find_mpi
from phalanx.records.events import ReplacedEvent
from phalanx.records.files import rank_file, read_events
from tests.conftest import PATIENCE, long
from tests.nodes.mpi_nodes import INSTALLED, Nodes
from tests.survival.deaths import Death
from tests.survival.trainings import PROGRAM, Trained, miscounted, read, train_alone

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", autouse=True)
def openmpi() -> None:
    if find_mpi(os.environ).vendor != "openmpi":
        pytest.skip("only Open MPI goes on when a rank dies")


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    alone = train_alone(tmp_path_factory.mktemp("truth"))
    assert miscounted(alone.ledgers[0]) == []
    return alone


def train(nodes: Nodes, folder: Path, slots: Sequence[int], spares: int, words: str) -> Trained:
    """Train on so many ranks of each node, of which the last are spares. words: the deaths."""
    hosts = [f"{nodes.host(node)}:{n}" for node, n in zip(nodes.nodes, slots, strict=False)]
    options = ["--survive", "--spares", str(spares), "--no-preflight", "--hosts", ",".join(hosts)]
    options += ["--threads", "1", "--log-dir", str(folder / "logs")]
    command = [
        sys.executable,
        "-m",
        "phalanx",
        "launch",
        *options,
        str(PROGRAM),
        str(folder),
        words,
    ]
    done = nodes.run("n0", command, environment=INSTALLED, timeout_s=100 * PATIENCE)
    said = subprocess.CompletedProcess(command, done.returncode, done.stdout, done.stdout)
    return read(folder, said)


@pytest.mark.parametrize(
    ("name", "slots", "spares", "deaths", "replaced"),
    [
        (  # the spare of n1 comes for a rank of n0; nobody is left for the one of n1
            "one",
            [2, 2],
            1,
            [Death(1, "batch", before=9), Death(2, "optimizer", before=20)],
            [([1], [3])],
        ),
        (  # also for rank 0, which has the checkpoints, and from a node where nobody computed
            "two",
            [2, 2, 2],
            2,
            [Death(0, "checkpoint", before=4), Death(3, "summed", before=20)],
            [([0], [4]), ([3], [5])],
        ),
        long(  # all that compute on n1, in one recovery
            "node",
            [2, 2, 2],
            2,
            [Death(2, "batch", before=9), Death(3, "batch", before=9)],
            [([2, 3], [4, 5])],
        ),
        long(  # who receives the state on n1, and then who sent it from n0
            "sent",
            [2, 4],
            3,
            [Death(2, "batch", 9), Death(3, "receiving", 0), Death(0, "sent", 1)],
            [],
        ),
    ],
)
def test_same_bits(
    nodes: Nodes,
    truth: Trained,
    name: str,
    slots: list[int],
    spares: int,
    deaths: list[Death],
    replaced: list[tuple[list[int], list[int]]],
) -> None:
    folder = nodes.shared / f"spares-{name}"
    folder.mkdir()
    ran = train(nodes, folder, slots, spares, json.dumps(deaths))
    assert ran.code == 0, ran.said
    died = {death.rank for death in deaths}
    assert set(ran.killed) == died, ran.said
    assert set(ran.results) == set(range(sum(slots))) - died, ran.said
    assert all(result == truth.results[0] for result in ran.results.values()), ran.said
    right = {step: row for _, step, row in truth.ledgers[0]}
    for rank, ledger in ran.ledgers.items():
        assert not [step for _, step, row in ledger if row != right[step]], rank
    outcome = json.loads((folder / "logs" / "run.json").read_text())["outcome"]
    assert outcome["status"] == "completed" and set(outcome["lost"]) == died
    events = [
        (event.lost, event.spares)
        for event in read_events(rank_file(folder / "logs", min(set(range(4)) - died)))
        if isinstance(event, ReplacedEvent)
    ]
    assert not replaced or events == replaced, ran.said
    for node in nodes.nodes:
        assert not nodes.processes(node)
        assert "segment" not in nodes.run(node, ["ls", "/dev/shm"]).stdout
