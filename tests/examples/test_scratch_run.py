"""`phalanx launch examples/scratch/train.py` as its users meet it: real ranks, records, signals."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from phalanx.data.datasets.catalog import resolve
from phalanx.errors import UserError
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
from tests.cli.conftest import PHALANX, Phalanx
from tests.cli.conftest import Started as StartedCommand
from tests.examples.conftest import SCRATCH

pytestmark = pytest.mark.mpi

PROGRAM = str(SCRATCH / "train.py")
SMALL = ("--dataset", "digits", "--train-samples", "1000", "--validation-samples", "500")
STEPS = 8  # of 125 samples
MANY, WITHIN_S = 128, 120
SHARED_MNIST = Path(__file__).parents[3] / "shared" / "data" / "mnist"


def events_of(folder: Path) -> list[list[Event]]:
    ranks = read_run(folder).setting.ranks
    return [list(read_events(folder / f"rank-{rank}.jsonl")) for rank in range(ranks)]


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        (1, "alone"),
        (2, "library"),
        (3, "ring"),
        (4, "server --servers 2"),
        (2, "tensor --hidden 32 16 --activation sigmoid"),
    ],
)
def test_a_run_leaves_whole_records(
    phalanx: Phalanx, tmp_path: Path, ranks: int, words: str
) -> None:
    folder = tmp_path / "run"
    done = phalanx(
        *("launch", "-n", str(ranks), "--log-dir", str(folder), PROGRAM, *SMALL),
        *("--epochs", "2", "--batch-size", "125", "--scheme", *words.split()),
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
    hits = sum(e.correct or 0 for e in evaluations if e.epoch == 1)
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


def test_bad_options_and_missing_data_end_with_exit_code_2(phalanx: Phalanx) -> None:
    for words, message in (
        (["--scheme", "server", "--servers", "2"], "--servers 2 of 2 ranks leaves no worker"),
        (["--dataset", "mnist"], "phalanx data fetch mnist"),
    ):
        done = phalanx("launch", "-n", "2", PROGRAM, *words)
        assert done.returncode == 2, done.stderr
        assert message in done.stdout + done.stderr


def long_run(
    started: StartedCommand, folder: Path, scheme: str
) -> tuple[subprocess.Popen[str], list[int]]:
    """A run that trains until it is ended, and the processes of its ranks."""
    process = started(
        *("launch", "-n", "3", "--log-dir", str(folder), PROGRAM),
        *("--scheme", scheme, "--dataset", "digits", "--epochs", "500"),
    )
    path, deadline = folder / "rank-0.jsonl", time.monotonic() + 60
    while not path.exists() or path.read_text().count('"step"') < 10:
        assert time.monotonic() < deadline, "no steps within a minute"
        time.sleep(0.05)
    started_events = [next(iter(read_events(folder / f"rank-{rank}.jsonl"))) for rank in range(3)]
    return process, [event.process_id for event in started_events]


@pytest.mark.parametrize(("scheme", "rank"), [("server", 0), ("ring", 1)])
def test_a_killed_rank_ends_the_run_and_is_named(
    started: StartedCommand, tmp_path: Path, scheme: str, rank: int
) -> None:
    folder = tmp_path / "run"
    process, pids = long_run(started, folder, scheme)
    os.kill(pids[rank], signal.SIGKILL)
    began = time.monotonic()
    _, stderr = process.communicate(timeout=60)
    assert time.monotonic() - began < 20
    assert process.returncode == 1
    assert re.search(
        rf"rank {rank}(, a server,)? failed(: its process is gone| first \(SIGKILL\))", stderr
    ), stderr
    assert read_run(folder).outcome.status == "failed"


def test_ctrl_c_ends_all_ranks_and_keeps_the_records(
    started: StartedCommand, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    process, pids = long_run(started, folder, "server")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert read_run(folder).outcome.status == "interrupted"
    for pid in pids:
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.long
@pytest.mark.parametrize(
    ("scheme", "ranks"), [("alone", 1), ("library", 2), ("ring", 3), ("server", 3), ("tensor", 2)]
)
@pytest.mark.parametrize("dataset", ["digits", "mnist"])
def test_every_scheme_learns_to_read_digits(
    tmp_path: Path,
    scheme: str,
    ranks: int,
    dataset: str,
) -> None:
    """The defaults on MNIST; the embedded digits take twice the epochs."""
    root = SHARED_MNIST if SHARED_MNIST.is_dir() else None
    if dataset == "mnist":
        try:
            resolve("mnist", root)
        except UserError:
            pytest.skip("MNIST is not on this machine")
    folder = tmp_path / "run"
    epochs = {"digits": "10", "mnist": "5"}[dataset]
    place = [] if root is None else ["env", f"PHALANX_DATA={root}"]
    words = [*place, str(PHALANX), "launch", "-n", str(ranks), "--log-dir", str(folder), PROGRAM]
    words += ["--scheme", scheme, "--dataset", dataset, "--epochs", epochs]
    subprocess.run(words, check=True)
    summaries = [e for e in events_of(folder)[0] if isinstance(e, SummaryEvent)]
    assert (summaries[-1].validation_accuracy or 0) >= 0.97


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["library", "ring", "server"])
def test_a_hundred_ranks_start_train_and_stop(
    phalanx: Phalanx, tmp_path: Path, scheme: str
) -> None:
    """Within two minutes on two cores, if nobody else is on them."""
    began, folder = time.monotonic(), tmp_path / "run"
    done = phalanx(
        *("launch", "-n", str(MANY), "--log-dir", str(folder), PROGRAM, "--scheme", scheme),
        *("--dataset", "digits", "--epochs", "1", "--batch-size", "512"),
        *("--train-samples", "2048", "--validation-samples", "1000"),
        timeout_s=600,
    )
    assert done.returncode == 0, done.stderr
    took = time.monotonic() - began
    ends = [events[-1] for events in events_of(folder)]
    assert all(
        isinstance(end, FinishedEvent) and end.peak_memory_bytes < 150 * 2**20 for end in ends[1:]
    )
    assert len({end.parameters_sha256 for end in ends if isinstance(end, FinishedEvent)}) == 1
    assert took < WITHIN_S, f"{took:.0f} s"


def test_the_program_imports_no_pytorch() -> None:
    listing = (
        "import sys, train; print(sorted({'torch', 'sklearn', 'cyclopts'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", listing],
        env={**os.environ, "PYTHONPATH": str(SCRATCH)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
