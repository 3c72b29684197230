"""`phalanx scratch` as its users meet it: real ranks, real records, real signals."""

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from phalanx.errors import RunFailedError
from phalanx.launch.installation import find_mpi
from phalanx.records.events import (
    EpochEvent,
    EvaluationEvent,
    Event,
    FinishedEvent,
    StartedEvent,
    StepEvent,
    SummaryEvent,
)
from phalanx.records.files import read_events, read_run
from phalanx.scratch.config import ScratchConfig, complete
from phalanx.scratch.job import run_scratch
from tests.cli.conftest import Phalanx
from tests.cli.conftest import Started as StartedCommand
from tests.conftest import Ranks

pytestmark = pytest.mark.mpi

SMALL = ("--dataset", "digits", "--train-samples", "1000", "--validation-samples", "500")
STEPS = 8  # of 125 samples


def events_of(folder: Path) -> list[list[Event]]:
    ranks = read_run(folder).setting.ranks
    return [list(read_events(folder / f"rank-{rank}.jsonl")) for rank in range(ranks)]


def started_of(folder: Path, rank: int) -> StartedEvent:
    event = next(iter(read_events(folder / f"rank-{rank}.jsonl")))
    assert isinstance(event, StartedEvent)
    return event


def is_running(pid: int) -> bool:
    """Who has ended, but was not buried by its parent yet, is not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for_steps(folder: Path) -> None:
    path = folder / "rank-0.jsonl"
    deadline = time.monotonic() + 60
    while not path.exists() or path.read_text().count('"step"') < 10:
        assert time.monotonic() < deadline, "no steps within a minute"
        time.sleep(0.05)


@pytest.mark.parametrize(
    "words",
    [
        "alone",
        "library --ranks 2",
        "ring --ranks 3",
        "server --ranks 4 --servers 2",
        "tensor --ranks 2 --hidden 32 16 --activation sigmoid",
    ],
)
def test_a_run_leaves_whole_records(phalanx: Phalanx, tmp_path: Path, words: str) -> None:
    folder = tmp_path / "run"
    done = phalanx(
        *("scratch", *SMALL, "--epochs", "2", "--batch-size", "125"),
        *("--run-dir", str(folder), "--scheme", *words.split()),
    )
    assert done.returncode == 0, done.stderr
    table = done.stdout.splitlines()[2:5]
    assert [line.split()[0] for line in table] == ["epoch", "1/2", "2/2"]
    assert len({len(line) for line in table}) == 1, "the table is not aligned"
    run = read_run(folder)
    assert run.outcome.status == "completed"
    assert (run.setting.model, run.setting.strategy) == ("network", words.split()[0])
    check_records(events_of(folder), num_servers=2 if "--servers" in words else 0)
    drawn = phalanx("report", str(folder))
    assert drawn.returncode == 0, drawn.stderr
    assert (folder / "report.html").exists()


def check_records(events_by_rank: list[list[Event]], *, num_servers: int) -> None:
    steps = [e for events in events_by_rank for e in events if isinstance(e, StepEvent)]
    epochs = [e for events in events_by_rank for e in events if isinstance(e, EpochEvent)]
    evaluations = [e for events in events_by_rank for e in events if isinstance(e, EvaluationEvent)]
    assert len(steps) == len(events_by_rank) * 2 * STEPS
    assert sum(e.samples for e in steps) == sum(e.samples for e in epochs) == 2 * 1000
    assert sum(e.samples for e in evaluations) == 2 * 500
    assert all(min(e.forward_s, e.backward_s, e.communication_s, e.optimizer_s) >= 0 for e in steps)
    assert all((e.user_s or 0) + (e.system_s or 0) > 0 for e in epochs), "processor time"
    finished = [e for events in events_by_rank for e in events if isinstance(e, FinishedEvent)]
    assert len({e.parameters_sha256 for e in finished}) == 1, "ranks end with other parameters"
    summary = [e for e in events_by_rank[0] if isinstance(e, SummaryEvent)][-1]
    hits = sum(e.correct for e in evaluations if e.epoch == 1)
    assert summary.validation_accuracy == pytest.approx(hits / 500)
    for rank, events in enumerate(events_by_rank):
        first = events[0]
        assert isinstance(first, StartedEvent)
        assert isinstance(events[-1], FinishedEvent)
        assert first.role == ("server" if rank < num_servers else "worker")
        assert first.expected is not None
        for epoch in (e for e in events if isinstance(e, EpochEvent)):
            assert epoch.sent_bytes == STEPS * (first.expected.sent_bytes or 0)
            assert epoch.received_bytes == STEPS * (first.expected.received_bytes or 0)


@pytest.mark.parametrize(
    ("words", "rank", "role"),
    [("server", 0, "server"), ("server", 2, "worker"), ("ring", 1, "worker")],
)
def test_a_killed_rank_ends_the_run_and_is_named(
    started: StartedCommand, tmp_path: Path, words: str, rank: int, role: str
) -> None:
    folder = tmp_path / "run"
    process = started(
        *("scratch", "--scheme", words, "--ranks", "3", "--dataset", "digits"),
        *("--epochs", "500", "--run-dir", str(folder)),
    )
    wait_for_steps(folder)
    os.kill(started_of(folder, rank).process_id, signal.SIGKILL)
    began = time.monotonic()
    _, stderr = process.communicate(timeout=60)
    assert time.monotonic() - began < 20
    assert process.returncode == 1
    assert stderr.startswith("phalanx: ")
    named = rf"rank {rank}(, a {role}, ended without a word| failed: its process is gone)"
    if find_mpi(os.environ).vendor != "openmpi":  # Hydra may kill the others in the same moment
        named += rf"|ranks ended without a word .*unfinished: [^.]*\b{rank}\b"
    assert re.search(named, stderr), stderr
    assert read_run(folder).outcome.status == "failed"


def test_ctrl_c_ends_all_ranks_and_keeps_the_records(
    started: StartedCommand, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    process = started(
        *("scratch", "--scheme", "server", "--ranks", "3", "--dataset", "digits"),
        *("--epochs", "500", "--run-dir", str(folder)),
    )
    wait_for_steps(folder)
    pids = [started_of(folder, rank).process_id for rank in range(3)]
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (130, "")
    assert read_run(folder).outcome.status == "interrupted"
    assert not [pid for pid in pids if is_running(pid)]


def run_odd(folder: Path, monkeypatch: pytest.MonkeyPatch, **environment: str) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    config = ScratchConfig(ranks=2, dataset="digits", train_samples=1000, epochs=1)
    program = Path(__file__).parent / "programs" / "odd_rank.py"
    run_scratch(
        complete(config),
        folder,
        study="test",
        command=["test"],
        console=Console(quiet=True),
        program=[sys.executable, str(program)],
    )


def test_no_rank_imports_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_odd(tmp_path / "run", monkeypatch, ODD="list")
    lists = [json.loads(path.read_text()) for path in (tmp_path / "run").glob("modules-*.json")]
    assert len(lists) == 2
    for modules in lists:
        assert "phalanx.scratch.schemes.ring" in modules
        assert not {"torch", "sklearn", "scipy", "rich", "cyclopts"} & set(modules)


def test_the_first_error_is_told_with_its_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RunFailedError) as caught:
        run_odd(tmp_path / "run", monkeypatch, ODD="raise", ODD_RANK="1")
    first_line = str(caught.value).splitlines()[0]
    assert first_line == "rank 1 failed: ZeroDivisionError: a fault made for a test"
    outcome = read_run(tmp_path / "run").outcome
    assert (outcome.status, outcome.rank) == ("failed", 1)


@pytest.mark.alone
def test_nobody_burns_a_core_while_waiting(ranks: Ranks, programs: Callable[[str], Path]) -> None:
    assert "waited quietly" in ranks.mpi(3, programs("waiting.py"))
