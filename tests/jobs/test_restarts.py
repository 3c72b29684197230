"""`--restarts` on one node: ranks or their launcher are lost, and the run ends as if none was."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from phalanx.checkpoints.folder import readable_folders
from phalanx.jobs.allocation import Allocation, parse_hosts
from phalanx.jobs.installation import find_mpi
from phalanx.jobs.leftovers import parent_of
from phalanx.jobs.restarts import WINDOW_S, left_of, why_no_restart
from phalanx.jobs.variables import _LAUNCHERS
from phalanx.records.events import StartedEvent
from phalanx.records.files import read_events, read_run
from phalanx.report.bitwise import judge, read_bitwise_run
from phalanx.report.folder import read_folder
from tests.conftest import ONE_THREAD, PATIENCE, forked_phalanx, forked_python, long

PHALANX = [sys.executable, "-m", "phalanx"]
PROGRAM = Path(__file__).parent / "programs" / "restarted.py"
SIZES = ("--batch-size", "60", "--width", "16")


@pytest.mark.parametrize(
    ("changed", "refusal"),
    [
        ({}, None),
        ({"is_loss": False}, None),
        ({"has_new_step": False}, None),
        ({"is_loss": False, "has_new_step": False}, "the program itself failed before a new step"),
        ({"has_new_step": False, "num_fruitless": 3}, "3 consecutive starts completed no new step"),
        ({"times": [0.0, 1.0]}, "--restarts 2: that many were made within the last hour"),
        ({"times": [0.0, 1.0], "now": WINDOW_S + 0.5}, None),
    ],
)
def test_losses_are_worth_a_restart_and_failures_that_repeat_are_not(
    changed: Mapping[str, Any], refusal: str | None
) -> None:
    usual: dict[str, Any] = {
        "is_loss": True, "has_new_step": True, "num_fruitless": 0, "times": [], "now": 10.0,
        "limit": 2,
    }  # fmt: skip
    found = why_no_restart(**{**usual, **changed})
    assert (found is None) if refusal is None else refusal in (found or "")


def test_hosts_that_do_not_answer_are_left_out_and_ranks_only_where_slots_are_short() -> None:
    nodes = Allocation(parse_hosts("n0:2,n1:2,n2:4"), "--hosts", is_named=True)
    left, ranks = left_of(nodes, {"n1": "no answer within 9 s"}, 5)
    assert (left.hosts(), ranks) == ("n0:2,n2:4", 5)
    left, ranks = left_of(nodes, {"n2": "no answer within 9 s"}, 5)
    assert (left.hosts(), ranks) == ("n0:2,n1:2", 4)
    assert left_of(nodes, {}, 12) == (nodes, 12)


def run(
    *words: object,
    phalanx: Sequence[str] = PHALANX,
    environment: Mapping[str, str] = {},
    timeout_s: float = 120,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*phalanx, *map(str, words)],
        capture_output=True,
        text=True,
        env={**os.environ, **ONE_THREAD, **environment},
        timeout=timeout_s * PATIENCE,
        check=False,
    )


@pytest.mark.parametrize("command", [["launch", "-n", "1", str(PROGRAM)], ["train"]])
@pytest.mark.parametrize(
    ("limit", "environment", "said"),
    [
        ("-1", {}, "--restarts -1: the number of restarts per hour must be 0 or more"),
        ("one", {}, "--restarts"),
        ("2", {"PMI_RANK": "0", "PMI_SIZE": "2"}, "that nothing outlives it to restart the"),
    ],
)
def test_numbers_below_0_and_ranks_of_a_launcher_are_refused(
    command: list[str], limit: str, environment: Mapping[str, str], said: str
) -> None:
    words = (command[0], "--restarts", limit, *command[1:])
    done = run(*words, phalanx=forked_phalanx(), environment=environment)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr


def truth(folder: Path) -> list[float]:
    """Return the result of one process that nobody disturbs."""
    command = [str(forked_python()), str(PROGRAM), str(folder)]
    subprocess.run(
        command,
        check=True,
        capture_output=True,
        timeout=60 * PATIENCE,
        env={**os.environ, **ONE_THREAD},
    )
    sums: list[float] = json.loads((folder / "result.json").read_text())
    return sums


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("ways", "timeout_s"),
    [
        (("kill", "launcher"), "20"),
        long(("stop", "kill", "stop"), "8"),
        long(("freeze", "kill"), "60"),
    ],
)
def test_a_program_is_started_again_from_its_newest_checkpoint(
    tmp_path: Path, ways: tuple[str, ...], timeout_s: str
) -> None:
    logs, own = tmp_path / "logs", tmp_path / "own"
    own.mkdir()
    options = ("--log-dir", logs, "-n", 2, "--restarts", len(ways))
    environment = {"TEST_TIMEOUT_S": timeout_s}
    done = run("launch", *options, PROGRAM, tmp_path, *ways, environment=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "result.json").read_text()) == truth(own)
    record = read_run(logs)
    assert record.outcome.status == "completed"
    assert [it.folder for it in record.restarts] == [f"restart-{n + 1}" for n in range(len(ways))]
    for number, restart in enumerate(record.restarts, 1):
        assert restart.ranks == 2
        assert 7 * number - 2 <= (restart.steps or 0) <= 7 * number  # written twice a second
        assert restart.checkpoint is not None and Path(restart.checkpoint).name.startswith("epoch-")
        told = f"phalanx: restart {number} (at most {len(ways)} per hour): 2 ranks on this machine"
        assert f"{told}, from the newest complete checkpoint, up to {restart.checkpoint}\n" in (
            done.stderr
        )
        assert read_run(logs / restart.folder).outcome.status != "running"
        if find_mpi(os.environ).vendor == "openmpi":  # with others a daemon is the rank's launcher
            frozen = re.match(r"the launcher \(process \d+ on \S+\) was stopped", restart.reason)
            assert bool(frozen) == (ways[number - 1] == "freeze")
    (measure,) = read_folder(logs).runs
    assert [epoch.epoch for epoch in measure.trained] == list(range(6))
    assert "restart 1 (" in (logs / "restarts.log").read_text()


@pytest.mark.mpi
@pytest.mark.long
def test_ranks_go_on_in_place_and_are_started_again_when_all_are_lost(tmp_path: Path) -> None:
    if find_mpi(os.environ).vendor != "openmpi":
        pytest.skip("only Open MPI goes on when a rank dies")
    own, logs = tmp_path / "own", tmp_path / "logs"
    own.mkdir()
    options = ("--survive", "--restarts", 1, "-n", 2, "--log-dir", logs)
    done = run("launch", *options, PROGRAM, tmp_path, "kill")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "result.json").read_text()) == truth(own)
    assert len(read_run(logs).restarts) == 1
    assert "one of 1 ends" in (logs / "rank-0.log").read_text()


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("program", "starts", "said"),
    [
        ([PROGRAM, "{folder}", "fail", "fail", "fail", "fail"], 2, "ArithmeticError: wrong"),
        (["-m", "this_module_is_missing"], 1, "No module named this_module_is_missing"),
    ],
)
def test_a_failure_of_the_program_itself_is_not_repeated(
    tmp_path: Path, program: list[object], starts: int, said: str
) -> None:
    """One that comes after new steps is tried once more."""
    words = [str(word).format(folder=tmp_path) for word in program]
    options = ("--log-dir", tmp_path / "logs", "-n", 2, "--restarts", 5)
    done = run("launch", *options, *words, phalanx=forked_phalanx())
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("phalanx: restart ") == starts - 1, done.stderr
    assert "not restarted: the program itself failed before a new" in done.stderr
    assert said in done.stderr + done.stdout  # which has all of rank 0
    if starts > 1:
        assert read_run(tmp_path / "logs").outcome.status == "failed"


@contextmanager
def training(
    folder: Path,
    *words: object,
    sizes: Sequence[str] = (*SIZES, "--epochs", "12"),
    phalanx: Sequence[str] = PHALANX,  # a rank that is a fork has another launcher
) -> Iterator[subprocess.Popen[str]]:
    command = [*phalanx, "train", "--bitwise", "--dataset", "digits"]
    samples = ["--train-samples", "120", "--validation-samples", "60"]
    with subprocess.Popen(
        [*command, *samples, *sizes, "--run-dir", str(folder), *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **ONE_THREAD},
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def wait_for(condition: Callable[[], object], seconds: float = 60) -> None:
    until = time.monotonic() + seconds * PATIENCE
    while not condition():
        assert time.monotonic() < until, "in vain"
        time.sleep(0.05)


def process_of(rank_file: Path) -> int:
    """Return the process id of a rank that has ended an epoch."""
    wait_for(lambda: rank_file.exists() and '"event":"epoch"' in rank_file.read_text())
    started = next(iter(read_events(rank_file)))
    assert isinstance(started, StartedEvent)
    return started.process_id


def launcher_of(pid: int) -> int:
    while Path(f"/proc/{pid}/comm").read_text().strip() not in _LAUNCHERS:
        pid = parent_of(pid)
    return pid


@pytest.mark.mpi
@pytest.mark.long
@pytest.mark.parametrize(("loss", "step_s"), [(signal.SIGKILL, 0.1), (signal.SIGSTOP, 1.0)])
def test_a_training_is_started_again_and_ends_with_the_bits_of_one_process(
    tmp_path: Path, loss: signal.Signals, step_s: float
) -> None:
    """After a rank was killed, and then its launcher was killed or stopped."""
    folder, saved = tmp_path / "run", tmp_path / "checkpoints"
    words = ("--strategy", "mpi", "--ranks", 2, "--restarts", 2, "--checkpoint-dir", saved)
    with training(folder, *words, "--slow-rank", f"0:{step_s}") as process:
        wait_for(lambda: readable_folders(saved))  # a thread writes them
        os.kill(process_of(folder / "rank-1.jsonl"), signal.SIGKILL)
        os.kill(launcher_of(process_of(folder / "restart-1" / "rank-1.jsonl")), loss)
        said = process.communicate(timeout=90 * PATIENCE)[0]
    assert process.returncode == 0, said
    with training(tmp_path / "alone") as alone:
        alone.communicate(timeout=60 * PATIENCE)
    is_same, why = judge(*(read_bitwise_run(tmp_path / name) for name in ("run", "alone")))
    assert is_same, why
    record = read_run(folder)
    assert record.outcome.status == "completed"
    assert len(record.restarts) == 2
    for number, restart in enumerate(record.restarts, 1):
        assert re.search(rf"restart {number} \(at most 2 per hour\): 2 ranks on this machine", said)
        assert f"resuming from {restart.checkpoint}" in said
    (measure,) = read_folder(folder).runs
    assert (measure.status, len(measure.trained)) == ("completed", 12)
