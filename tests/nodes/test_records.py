"""Records of ranks on nodes that share no folder: all are where the run was started."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import PATIENCE
from tests.nodes.conftest import Nodes
from tests.nodes.mpi_nodes import INSTALLED

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(400)]

LOCAL = "/mnt/scratch"
"""A folder that each node has for itself."""
PHALANX = [sys.executable, "-m", "phalanx"]
HOSTS = ["--hosts", "n0:1,n1:1"]
SCRATCH = Path(__file__).parents[2] / "examples" / "scratch" / "train.py"


def on_n0(nodes: Nodes, *words: str) -> tuple[int, str]:
    done = nodes.run("n0", list(words), environment=INSTALLED, timeout_s=100 * PATIENCE)
    return done.returncode, done.stdout


def files_in(nodes: Nodes, folder: str) -> set[str]:
    return set(on_n0(nodes, "ls", folder)[1].split())


def outcome_in(nodes: Nodes, folder: str) -> dict[str, object]:
    outcome: dict[str, object] = json.loads(on_n0(nodes, "cat", f"{folder}/run.json")[1])["outcome"]
    return outcome


def test_records_and_spans_of_a_training_come_home(nodes: Nodes) -> None:
    """And a report draws them; nothing is left on the other node. What goes between the nodes is
    what lanes send: of n bytes of gradients a node sends n, half of it by each rank."""
    folder = f"{LOCAL}/trained"
    options = ["--strategy", "mpi", "--dataset", "digits", "--train-samples", "240", "--trace"]
    options += ["--batch-size", "60", "--epochs", "2", "--threads", "1", "--run-dir", folder]
    code, said = on_n0(nodes, *PHALANX, "train", "--hosts", "n0:2,n1:2", *options)
    assert code == 0, said
    files = {f"{kind}-{rank}.jsonl" for kind in ("rank", "spans") for rank in range(4)}
    assert files_in(nodes, folder) >= {"run.json", *files}
    assert outcome_in(nodes, folder)["status"] == "completed"
    assert "trace of 4 ranks" in said
    for rank in range(4):
        lines = on_n0(nodes, "cat", f"{folder}/rank-{rank}.jsonl")[1].splitlines()
        events = [json.loads(line) for line in lines]
        assert (events[0]["collective"], events[-1]["event"]) == ("lanes", "finished")
        epochs = [event for event in events if event["event"] == "epoch"]
        assert len(epochs) == 2
        for epoch in epochs:
            half = epoch["communicated_bytes"] // 2
            # Beside gradients: loss and weight of 4 steps, and in the first step a number of each
            # rank, by which all know that they weigh alike; of 3 peers 2 are on the other node.
            numbers = 4 * 2 + 4 * (epoch is epochs[0])
            beside = 2 * 8 * numbers
            assert epoch["network_sent_bytes"] == epoch["network_received_bytes"] == half + beside
            assert epoch["sent_bytes"] == 3 * half + 3 * 8 * numbers  # 2 of 3 parts on the node
            assert epoch["formula_bytes"] == 0  # the MPI library has sent none
        steps = [event for event in events if event["event"] == "step"]
        assert all(step["network_s"] > 0 and step["node_s"] > 0 for step in steps)
    assert on_n0(nodes, *PHALANX, "report", folder)[0] == 0
    left = nodes.run("n1", ["sh", "-c", f"ls -d {folder} /tmp/phalanx-job-*"])
    assert left.stdout.count("No such file") == 2, left.stdout


def test_the_failure_of_a_program_names_its_host(
    nodes: Nodes, programs: Callable[[str], Path]
) -> None:
    folder = f"{LOCAL}/failed"
    program = [str(programs("own_loop.py")), "", "raise ValueError('no good')"]
    code, said = on_n0(nodes, *PHALANX, "launch", *HOSTS, "--log-dir", folder, *program)
    assert code == 1, said
    assert "rank 1 (n1) failed" in said
    assert "ValueError: no good" in said
    assert files_in(nodes, folder) >= {"rank-0.log", "rank-1.log", "ended-1.json", "rank-1.jsonl"}
    outcome = outcome_in(nodes, folder)
    assert outcome["status"] == "failed"
    assert "no good" in str(outcome["error"])


def test_ranks_of_the_users_own_launcher_gather_their_records(
    nodes: Nodes, programs: Callable[[str], Path]
) -> None:
    folder = f"{LOCAL}/own"
    nodes.run_ranks(programs("own_loop.py"), folder, "")
    assert outcome_in(nodes, folder)["status"] == "completed"
    gathered = on_n0(nodes, "cat", f"{folder}/rank-1.jsonl")[1]
    assert nodes.run("n1", ["cat", f"{folder}/rank-1.jsonl"]).stdout == gathered
    events = [json.loads(line)["event"] for line in gathered.splitlines()]
    assert (events[0], events[-1]) == ("started", "finished")


@pytest.mark.parametrize(
    "words",
    [
        "bench collectives --ranks 2 --sizes 4 --paths phalanx,mpi --repeats 4 --output",
        f"launch -n 2 --log-dir {{}} {SCRATCH} --dataset digits --train-samples 300 --epochs 1",
    ],
)
def test_records_of_other_ranks_come_home(nodes: Nodes, words: str) -> None:
    """A measurement's, and those of a program without PyTorch."""
    folder = f"{LOCAL}/{words.split()[0]}"
    named = words.format(folder) if "{}" in words else f"{words} {folder}"
    command, *options = named.split()
    code, said = on_n0(nodes, *PHALANX, command, *place_hosts(command, options))
    assert code == 0, said
    assert files_in(nodes, folder) >= {"rank-0.jsonl", "rank-1.jsonl"}
    last = on_n0(nodes, "tail", "-n", "1", f"{folder}/rank-1.jsonl")[1]
    assert json.loads(last)["event"] in ("measured", "finished")


def place_hosts(command: str, options: list[str]) -> list[str]:
    """Options of `launch` stand before its program, of a group of commands after its name."""
    return [*HOSTS, *options] if command == "launch" else [options[0], *HOSTS, *options[1:]]
