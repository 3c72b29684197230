"""Losses in mid-run: of a node, a daemon, a rank, a link. The run ends everywhere and says where.

A link that comes back within five seconds is no loss.
"""

import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from phalanx.jobs.stray_daemon import FROZEN_S
from tests.conftest import PATIENCE, long
from tests.nodes.conftest import MakeNodes
from tests.nodes.mpi_nodes import INSTALLED, Nodes

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(400)]

TIMEOUT_S = 8
END_S = 15
"""Seconds after the timeout within which nothing of the run is left, on any node."""
SHORT_TIMEOUT_S = 3
"""The ranks give up before the launcher or its daemons notice anything."""
BLINK_S = 5
BLINK_TIMEOUT_S = 20
START_S = 150
SEEDS = range(20)
NUM_SAMPLES = 120  # two steps
Fault = Callable[[Nodes, str], object]


def kill_rank(nodes: Nodes, node: str) -> None:
    """Kill the rank that is on the node, and not what watches over it."""
    rank = f"{sys.executable} -m phalanx.train"
    ranks = [pid for pid, words in nodes.processes(node) if words.startswith(rank)]
    nodes.run(node, ["kill", "-9", *map(str, ranks)])


def kill_daemon(nodes: Nodes, node: str) -> None:
    nodes.run(node, ["pkill", "-9", "-x", "prted|hydra_pmi_proxy"])


def kill_launcher(nodes: Nodes, node: str) -> None:
    """Kill `mpiexec`, which runs on the node of rank 0 alone."""
    assert node == "n0"
    nodes.run(node, ["pkill", "-9", "-x", r"prterun|mpiexec|mpiexec\.hydra"])


def freeze_daemon(nodes: Nodes, node: str) -> None:
    nodes.run(node, ["pkill", "-STOP", "-x", "prted|hydra_pmi_proxy"])


def freeze_launcher(nodes: Nodes, node: str) -> None:
    assert node == "n0"
    nodes.run(node, ["pkill", "-STOP", "-x", r"prterun|mpiexec|mpiexec\.hydra"])


FAULTS: dict[str, Fault] = {
    "node killed": Nodes.kill,
    "power off": Nodes.power_off,
    "daemon killed": kill_daemon,
    "rank killed": kill_rank,
    "link down": lambda nodes, node: nodes.set_link(node, "down"),
    "link cut": lambda nodes, node: nodes.set_link(node, "cut"),
}


OF_RANK_0: dict[str, Fault] = {"rank killed": kill_rank, "launcher killed": kill_launcher}
"""What can happen on the node where the run was started, which goes on."""


def training(nodes: Nodes, epochs: int, timeout_s: float) -> list[str]:
    """Return the command of a run whose epochs take half a second or more."""
    hosts = ",".join(f"{node}:1" for node in nodes.nodes)
    return [
        *(sys.executable, "-m", "phalanx", "train", "--strategy", "mpi", "--hosts", hosts),
        *("--dataset", "digits", "--train-samples", str(NUM_SAMPLES), "--validation-samples", "60"),
        *("--batch-size", "60", "--width", "16", "--threads", "1", "--slow-rank", "0:0.25"),
        *("--epochs", str(epochs), "--timeout-s", str(timeout_s)),
        *("--run-dir", str(nodes.shared / "run")),
    ]


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    """Return whether the condition came true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def epochs_of(log: Path) -> int:
    return max(map(int, re.findall(r"epoch +(\d+)/", log.read_text())), default=0)


def outcome_of(nodes: Nodes) -> dict[str, str]:
    outcome: dict[str, str] = json.loads((nodes.shared / "run" / "run.json").read_text())["outcome"]
    return outcome


def trains(run: subprocess.Popen[bytes], log: Path) -> bool:
    """Wait for the first epoch, and return whether it has come."""
    wait_for(lambda: epochs_of(log) > 0 or run.poll() is not None, START_S * PATIENCE)
    return epochs_of(log) > 0


def lose(
    nodes: Nodes,
    fault: Fault,
    victim: str,
    delay_s: float,
    log: Path,
    *,
    timeout_s: float = TIMEOUT_S,
    ended_s: float = 0.0,
) -> None:
    """Start a run, break the victim, and check how the run ends. ended_s: 0: by the timeout."""
    command, end_s = training(nodes, 100_000, timeout_s), ended_s or timeout_s + END_S
    with nodes.start("n0", command, log, environment=INSTALLED) as run:
        assert trains(run, log), log.read_text()
        time.sleep(delay_s)
        fault(nodes, victim)
        lost_at = time.monotonic()
        ended = wait_for(lambda: run.poll() is not None, end_s * PATIENCE)
        said = log.read_text()
        assert ended, f"the command runs on\n{said}"
    alive = [node for node in nodes.nodes if nodes.is_alive(node)]
    rest_s = end_s * PATIENCE - (time.monotonic() - lost_at)
    left = wait_for(lambda: not any(nodes.processes(node) for node in alive), rest_s)
    assert left, {node: nodes.processes(node) for node in alive}
    assert run.returncode != 0, said
    outcome = outcome_of(nodes)
    assert outcome["status"] == "failed", outcome
    assert re.search(rf"\b{victim}\b", outcome["error"]), outcome
    assert re.search(rf"\b{victim}\b", said.rpartition("\nepoch ")[2]), said


@pytest.mark.parametrize("name", FAULTS)
def test_a_loss_ends_the_run_everywhere_and_is_told(
    make_nodes: MakeNodes, tmp_path: Path, name: str
) -> None:
    with make_nodes(2) as nodes:
        lose(nodes, FAULTS[name], "n1", 0.0, tmp_path / "log")
        if name == "daemon killed":
            log = (nodes.shared / "run" / "launcher.log").read_text()
            assert "the launcher lost its daemon on " in outcome_of(nodes)["error"], log


@pytest.mark.parametrize("name", OF_RANK_0)
def test_a_loss_on_the_first_node_ends_the_run_everywhere_and_is_told(
    make_nodes: MakeNodes, tmp_path: Path, name: str
) -> None:
    with make_nodes(2) as nodes:
        lose(nodes, OF_RANK_0[name], "n0", 0.0, tmp_path / "log")


@pytest.mark.parametrize(
    ("victim", "freeze"), [long("n0", freeze_launcher), long("n1", freeze_daemon)]
)
def test_a_frozen_launcher_or_daemon_ends_the_run_everywhere_and_is_told(
    make_nodes: MakeNodes, tmp_path: Path, victim: str, freeze: Fault
) -> None:
    with make_nodes(2) as nodes:
        lose(nodes, freeze, victim, 0.0, tmp_path / "log", ended_s=FROZEN_S + END_S)


def test_a_node_that_is_cut_off_ends_its_daemon(make_nodes: MakeNodes, tmp_path: Path) -> None:
    """Ranks that give up early send words through the daemon, which then waits for TCP."""
    with make_nodes(2) as nodes:
        short_s = SHORT_TIMEOUT_S * PATIENCE
        lose(nodes, FAULTS["link cut"], "n1", 0.0, tmp_path / "log", timeout_s=short_s)


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", FAULTS)
def test_losses_at_random_moments(
    make_nodes: MakeNodes, tmp_path: Path, name: str, seed: int
) -> None:
    chosen = random.Random(f"{name} {seed}")
    with make_nodes(3) as nodes:
        victim = chosen.choice(["n1", "n2"])
        lose(nodes, FAULTS[name], victim, chosen.uniform(0, 2), tmp_path / "log")


def blink(nodes: Nodes, delay_s: float, how: tuple[str, str], log: Path) -> None:
    """Take a link away for five seconds: the run completes."""
    command = training(nodes, 12, BLINK_TIMEOUT_S)
    with nodes.start("n0", command, log, environment=INSTALLED) as run:
        assert trains(run, log), log.read_text()
        time.sleep(delay_s)
        broken, mended = how
        nodes.set_link("n1", broken)
        time.sleep(BLINK_S)
        nodes.set_link("n1", mended)
        assert wait_for(lambda: run.poll() is not None, 90 * PATIENCE), log.read_text()
    assert run.returncode == 0, log.read_text()
    assert outcome_of(nodes)["status"] == "completed"


def test_a_link_that_blinks_ends_nothing(make_nodes: MakeNodes, tmp_path: Path) -> None:
    with make_nodes(2) as nodes:
        blink(nodes, 0.0, ("down", "up"), tmp_path / "log")


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_links_that_blink_at_random_moments(
    make_nodes: MakeNodes, tmp_path: Path, seed: int
) -> None:
    chosen = random.Random(seed)
    how = chosen.choice([("down", "up"), ("cut", "mended")])
    with make_nodes(2) as nodes:
        blink(nodes, chosen.uniform(0, 2), how, tmp_path / "log")
