"""Spares on two or three nodes take the places of ranks that die on any of them."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from phalanx.errors import EXIT_STOPPED
from phalanx.jobs.installation import find_mpi
from phalanx.records.events import ReplacedEvent
from phalanx.records.files import rank_file, read_events
from tests.conftest import PATIENCE, long
from tests.nodes.mpi_nodes import INSTALLED, Nodes
from tests.nodes.test_unshared import LOCAL
from tests.run.test_preemption import PROGRAM as PREEMPTED
from tests.survival.deaths import Death
from tests.survival.test_train import EPOCHS, WORDS
from tests.survival.test_train import train as train_command
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
        long(  # also for rank 0, which has the checkpoints, and from a node where nobody computed
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


@pytest.mark.long
def test_a_training_whose_records_lie_on_two_disks(
    command: list[str], nodes: Nodes, tmp_path: Path
) -> None:
    """The spare of n1 takes the place of rank 0, and so is in the records that n0 gets of n1."""
    alone = train_command(command, tmp_path, "--bitwise")
    assert alone.returncode == 0, alone.stderr
    hosts = ",".join(f"{nodes.host(node)}:2" for node in nodes.nodes[:2])
    words = ["--survive", "--spares", "1", "--no-preflight", "--strategy", "mpi", "--hosts", hosts]
    done = nodes.run(
        "n0",
        [sys.executable, "-m", "phalanx", *WORDS, *words, "--run-dir", f"{LOCAL}/spared"],
        environment={**INSTALLED, "DEATHS": json.dumps([(0, "evaluation", 2)])},
        timeout_s=100 * PATIENCE,
    )
    assert done.returncode == 0, done.stdout
    assert "rank 0 died: rank 3, a spare, took its place: 3 ranks continued after" in done.stdout
    (expected,) = re.findall("SHA-256 ([0-9a-f]{64})", alone.stdout)
    assert re.findall("SHA-256 ([0-9a-f]{64})", done.stdout) == [expected]
    epochs = re.findall(r"^epoch (\d+)/", done.stdout, re.MULTILINE)
    assert epochs == [str(number) for number in range(1, EPOCHS + 1)], done.stdout
    steps = nodes.run("n0", ["grep", "-c", '"event":"step"', f"{LOCAL}/spared/rank-3.jsonl"])
    assert int(steps.stdout) > 0
    record = nodes.run("n0", ["cat", f"{LOCAL}/spared/run.json"]).stdout
    outcome = json.loads(record)["outcome"]
    assert outcome["status"] == "completed" and outcome["lost"] == [0]
    assert not nodes.processes("n0") and not nodes.processes("n1")


@pytest.mark.long
def test_a_spare_on_another_node_is_asked_to_stop(nodes: Nodes, tmp_path: Path) -> None:
    """The run saves on n0 and stops, and goes on from there."""
    folder = nodes.shared / "stopped"
    folder.mkdir()
    hosts = ",".join(f"{nodes.host(node)}:{n}" for node, n in (("n0", 2), ("n1", 1)))
    options = ["--survive", "--spares", "1", "--no-preflight", "--hosts", hosts, "--threads", "1"]
    launch = [sys.executable, "-m", "phalanx", "launch", *options, "--log-dir", f"{folder}/logs"]
    program, log = [str(PREEMPTED), str(folder), "40", "0.02"], tmp_path / "log"
    with nodes.start("n0", [*launch, *program], log, environment=INSTALLED) as job:
        until = time.monotonic() + 60 * PATIENCE
        while not (folder / "trains").exists():
            assert time.monotonic() < until and job.poll() is None, log.read_text()
            time.sleep(0.05)
        assert nodes.run("n1", ["kill", (folder / "process-2").read_text()]).returncode == 0
        assert job.wait(60 * PATIENCE) == EXIT_STOPPED, log.read_text()
    assert "phalanx: stopped after step" in log.read_text()
    results, undisturbed = [], nodes.shared / "undisturbed"
    undisturbed.mkdir()
    for place in (folder, undisturbed):
        words = [sys.executable, str(PREEMPTED), str(place), "40", "0"]
        again = nodes.run("n0", words, environment=INSTALLED, timeout_s=60 * PATIENCE)
        assert again.returncode == 0, again.stdout
        assert ("resuming from" in again.stdout) == (place == folder), again.stdout
        results.append((place / "result").read_text())
    assert results[0] == results[1]
