"""`phalanx train` as its users meet it: real ranks, real records, real signals."""

import json
import os
import pty
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from rich.console import Console
from safetensors.torch import load_file

from phalanx.errors import RunFailedError
from phalanx.jobs.installation import find_mpi
from phalanx.jobs.live_line import LiveLine
from phalanx.records.events import (
    EpochEvent,
    EvaluationEvent,
    FinishedEvent,
    StartedEvent,
    SummaryEvent,
)
from phalanx.records.files import read_events, read_run
from phalanx.records.owner import has_died
from phalanx.train.config import TrainConfig
from phalanx.train.job import launch_of
from phalanx.train.run import complete
from tests.cli.conftest import PHALANX, Phalanx, Started
from tests.conftest import ONE_THREAD, long

pytestmark = pytest.mark.mpi

DIGITS = ("--dataset", "digits", "--validation-samples", "1000")
SMALL = (*DIGITS, "--train-samples", "1000", "--epochs", "2")


def finished(folder: Path, rank: int = 0) -> FinishedEvent:
    *_, last = read_events(folder / f"rank-{rank}.jsonl")
    assert isinstance(last, FinishedEvent)
    return last


def processes_of(folder: Path) -> list[psutil.Process]:
    return [p for p in psutil.process_iter(["cmdline"]) if str(folder) in (p.info["cmdline"] or [])]


def wait_for_steps(folder: Path, count: int = 10) -> None:
    path = folder / "rank-0.jsonl"
    deadline = time.monotonic() + 60
    while not path.exists() or path.read_text().count('"step"') < count:
        assert time.monotonic() < deadline, "no steps within a minute"
        time.sleep(0.05)


@pytest.mark.parametrize("words", ["sequential", "zero --ranks 2", "gloo --ranks 3"])
def test_a_run_leaves_whole_records(
    forked_phalanx: Phalanx, tmp_path: Path, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where output is ASCII: the dash in the epoch line of zero ended rank 0."""
    if words.startswith("zero"):
        monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    folder = tmp_path / "run"
    done = forked_phalanx("train", *SMALL, "--run-dir", str(folder), "--strategy", *words.split())
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("epoch ") == 2
    run = read_run(folder)
    assert run.outcome.status == "completed"
    assert run.setting.global_batch_size == 128
    events = [list(read_events(folder / f"rank-{r}.jsonl")) for r in range(run.setting.ranks)]
    epochs = [e for rank in events for e in rank if isinstance(e, EpochEvent) and e.epoch == 1]
    evaluations = [
        e for rank in events for e in rank if isinstance(e, EvaluationEvent) and e.epoch == 1
    ]
    summary = [e for e in events[0] if isinstance(e, SummaryEvent)][-1]
    assert sum(e.samples for e in epochs) == 1000
    for epoch in epochs:
        assert epoch.user_s is not None
        assert epoch.system_s is not None
        assert 0 < epoch.user_s + epoch.system_s < 64 * epoch.train_s, "one rank, all its threads"
    assert sum(e.samples for e in evaluations) == 1000
    hits = sum(e.correct for e in evaluations)
    assert summary.validation_accuracy == pytest.approx(hits / 1000)
    digests = {finished(folder, rank).parameters_sha256 for rank in range(run.setting.ranks)}
    assert len(digests) == 1, "ranks ended with different parameters"


def test_the_command_in_the_record_makes_the_run_again(
    forked_phalanx: Phalanx, tmp_path: Path
) -> None:
    words = ("train", *SMALL, "--strategy", "mpi", "--ranks", "2")
    for name in ("first", "second"):
        assert forked_phalanx(*words, "--run-dir", str(tmp_path / name)).returncode == 0
    first, second = (finished(tmp_path / name) for name in ("first", "second"))
    assert first.parameters_sha256 == second.parameters_sha256


def test_resuming_gives_the_parameters_of_an_uninterrupted_run(
    forked_phalanx: Phalanx, tmp_path: Path
) -> None:
    def train(name: str, *words: str) -> Path:
        folder = tmp_path / name
        done = forked_phalanx(
            "train", *SMALL, "--run-dir", str(folder), "--strategy", "mpi", *words
        )
        assert done.returncode == 0, done.stderr
        return folder

    whole = train("whole", "--ranks", "2", "--checkpoint-dir", str(tmp_path / "a"))
    first = str(tmp_path / "a" / "epoch-0001")
    again = train("again", "--ranks", "2", "--resume", first)
    assert finished(again).parameters_sha256 == finished(whole).parameters_sha256

    train("more", "--ranks", "3", "--resume", first, "--checkpoint-dir", str(tmp_path / "b"))
    expected, found = (
        load_file(tmp_path / name / "epoch-0002" / "model.safetensors") for name in ("a", "b")
    )
    for name, tensor in expected.items():
        assert (found[name] - tensor).abs().max() < 1e-4, name


def test_a_checkpoint_of_another_model_is_refused(forked_phalanx: Phalanx, tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    one_epoch = (*SMALL[:-1], "1", "--checkpoint-dir", str(checkpoints))
    assert forked_phalanx("train", *one_epoch).returncode == 0
    assert (
        "all that were requested: nothing is left"
        in (done := forked_phalanx("train", *one_epoch, "--resume", str(checkpoints))).stdout
    )
    assert done.returncode == 0
    done = forked_phalanx("train", *one_epoch)
    assert done.returncode == 2
    assert "holds the checkpoints of a run, up to epoch-0001" in done.stderr
    done = forked_phalanx("train", *SMALL, "--model", "rnn", "--resume", str(checkpoints))
    assert done.returncode == 2
    assert "epoch-0001 has a different model (MLP there, RNN here): " in done.stderr
    path = checkpoints / "epoch-0001" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    done = forked_phalanx("train", *SMALL, "--resume", str(checkpoints))
    assert done.returncode == 2
    assert "model.safetensors has" in done.stderr


@pytest.mark.parametrize(
    ("strategy", "request_to_end"),
    [
        ("mpi", signal.SIGINT),
        long("gloo", signal.SIGINT),
        long("mpi", signal.SIGTERM),
        ("gloo", signal.SIGHUP),
        ("mpi", signal.SIGQUIT),
    ],
)
def test_ctrl_c_ends_all_ranks_and_keeps_the_records(
    forked_started: Started, tmp_path: Path, strategy: str, request_to_end: signal.Signals
) -> None:
    folder = tmp_path / "run"
    words = ("train", "--dataset", "digits", "--strategy", strategy, "--ranks", "2")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    process = forked_started(*words, "--epochs", "500", "--run-dir", str(folder), env=environment)
    wait_for_steps(folder)
    assert len(processes_of(folder)) >= 3
    process.send_signal(request_to_end)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert stderr == ""
    assert not processes_of(folder)
    assert read_run(folder).outcome.status == "interrupted"
    assert not [path for path in temporary.iterdir() if not path.name.startswith("torchinductor")]
    for rank in range(2):
        assert list(read_events(folder / f"rank-{rank}.jsonl"))


def test_a_killed_launcher_is_named_and_leaves_nothing(started: Started, tmp_path: Path) -> None:
    folder, temporary = tmp_path / "run", tmp_path / "temporary"
    temporary.mkdir()
    words = ("train", "--dataset", "digits", "--strategy", "mpi", "--ranks", "2")
    environment = {**os.environ, "TMPDIR": str(temporary)}
    process = started(*words, "--epochs", "500", "--run-dir", str(folder), env=environment)
    wait_for_steps(folder)
    run = read_run(folder)
    assert run.owner is not None
    assert run.owner.process_id == process.pid
    (launcher,) = psutil.Process(process.pid).children()
    launcher.kill()
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "the launcher was killed (SIGKILL), and its ranks with it" in stderr
    assert read_run(folder).outcome.status == "failed"
    assert not processes_of(folder)
    assert not [path for path in temporary.iterdir() if not path.name.startswith("torchinductor")]


def test_a_run_of_the_users_own_launcher_that_is_ended_says_so(
    tmp_path: Path, forking_python: Path
) -> None:
    """Nobody but its ranks keeps the record of such a run: a batch system's time limit left it
    running for ever."""
    folder = tmp_path / "run"
    launcher = [PHALANX.with_name("mpiexec"), "-n", "2"]
    if PHALANX.with_name("ompi_info").exists():
        launcher[1:1] = ["--allow-run-as-root", "--oversubscribe"]
    words = ("train", "--dataset", "digits", "--strategy", "mpi", "--epochs", "500")
    program = [*launcher, forking_python, "-m", "phalanx", *words, "--run-dir", folder]
    with subprocess.Popen(program, env=os.environ | ONE_THREAD) as process:
        try:
            wait_for_steps(folder)
            (first,) = [
                e for e in read_events(folder / "rank-0.jsonl") if isinstance(e, StartedEvent)
            ]
            owner = read_run(folder).owner
            assert owner is not None
            assert owner.process_id == first.process_id
            rank = psutil.Process(first.process_id)
            process.terminate()
            process.wait(timeout=30)
            # The launcher may end before its ranks do.
            psutil.wait_procs([rank], timeout=30)
        finally:
            process.kill()
    assert read_run(folder).outcome.status == "interrupted"


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_under_the_users_own_launcher(
    tmp_path: Path, forking_python: Path, rank: int
) -> None:
    """It was called "interrupted": the launcher ends the others with SIGTERM."""
    folder = tmp_path / "run"
    launcher = [PHALANX.with_name("mpiexec"), "-n", "2"]
    if PHALANX.with_name("ompi_info").exists():
        launcher[1:1] = ["--allow-run-as-root", "--oversubscribe"]
    words = ("train", "--dataset", "digits", "--strategy", "mpi", "--epochs", "500")
    program = [*launcher, forking_python, "-m", "phalanx", *words, "--run-dir", folder]
    with subprocess.Popen(program, env=os.environ | ONE_THREAD) as process:
        try:
            wait_for_steps(folder)
            first = next(iter(read_events(folder / f"rank-{rank}.jsonl")))
            assert isinstance(first, StartedEvent)
            os.kill(first.process_id, signal.SIGKILL)
            assert process.wait(timeout=60) != 0
        finally:
            process.kill()
    run = read_run(folder)
    if run.outcome.status == "running":  # nobody was left to close it
        assert has_died(run)
    else:
        assert run.outcome.status == "failed"
        assert f"rank {rank}" in (run.outcome.error or "")


@pytest.mark.parametrize(
    ("strategy", "rank"), [("mpi", 2), ("gloo", 0), long("mpi", 0), long("gloo", 2)]
)
def test_the_first_error_is_told_once_with_its_rank(
    tmp_path: Path,
    forking_python: Path,
    strategy: str,
    rank: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {**ONE_THREAD, "RAISING_RANK": str(rank)}.items():
        monkeypatch.setenv(name, value)
    config, _ = complete(
        TrainConfig.from_options(strategy=strategy, ranks=3, dataset="digits", train_samples=1000),
        None,
    )
    program = [str(forking_python), str(Path(__file__).parent / "programs" / "raising_rank.py")]
    began = time.monotonic()
    with pytest.raises(RunFailedError) as caught:
        launch_of(config, LiveLine(Console(quiet=True)), command=["test"], program=program).run(
            tmp_path / "run"
        )
    assert time.monotonic() - began < 30
    first_line = str(caught.value).splitlines()[0]
    assert first_line == f"rank {rank} failed: ZeroDivisionError: a fault made for a test"
    outcome = read_run(tmp_path / "run").outcome
    assert (outcome.status, outcome.rank) == ("failed", rank)
    assert (
        "raising_rank.py" in json.loads((tmp_path / "run" / "error.json").read_text())["traceback"]
    )
    assert not processes_of(tmp_path / "run")


@pytest.mark.parametrize("strategy", ["mpi", "gloo"])
def test_a_killed_rank_ends_the_run(forked_started: Started, tmp_path: Path, strategy: str) -> None:
    folder = tmp_path / "run"
    words = ("train", "--dataset", "digits", "--strategy", strategy, "--ranks", "2")
    process = forked_started(*words, "--epochs", "500", "--run-dir", str(folder))
    wait_for_steps(folder)
    first = next(iter(read_events(folder / "rank-1.jsonl")))
    os.kill(first.process_id, signal.SIGKILL)  # type: ignore[union-attr]
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert stderr.startswith("phalanx: ")
    assert read_run(folder).outcome.status == "failed"
    assert not processes_of(folder)


def test_ranks_that_mpiexec_started_join_each_other(tmp_path: Path, forking_python: Path) -> None:
    launcher = [PHALANX.with_name("mpiexec"), "-n", "3"]
    if PHALANX.with_name("ompi_info").exists():
        launcher[1:1] = ["--allow-run-as-root", "--oversubscribe"]
    words = ("train", *SMALL, "--strategy", "mpi", "--run-dir", tmp_path / "run")
    done = subprocess.run(
        [*launcher, forking_python, "-m", "phalanx", *words],
        env=os.environ | ONE_THREAD,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("epoch 2/2") == 1
    run = read_run(tmp_path / "run")
    assert run.outcome.status == "completed"
    assert run.setting.ranks == 3
    assert len({finished(tmp_path / "run", rank).parameters_sha256 for rank in range(3)}) == 1


def test_the_kind_of_pmi_that_srun_has_to_offer_is_named(
    forked_phalanx: Phalanx, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4"}
    for name, value in step.items():
        monkeypatch.setenv(name, value)
    done = forked_phalanx("train", *SMALL, "--strategy", "mpi")
    assert done.returncode == 2
    kind = "pmix" if find_mpi(os.environ).vendor == "openmpi" else "pmi2"
    said = "of 1: srun offers its tasks no interface of this library: use srun --mpi="
    assert said + kind in done.stderr


def test_the_live_line_on_a_terminal(forked_started: Started, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    words = ("train", *DIGITS, "--train-samples", "20000", "--epochs", "2")
    process = forked_started(
        *words,
        *("--strategy", "mpi", "--ranks", "2", "--run-dir", str(tmp_path / "run")),
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "150"},
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other end was closed: it has ended
            break
        if not part:
            break
        shown += part
    os.close(ours)
    assert process.wait(timeout=30) == 0
    text = shown.decode()
    assert "█" in text
    assert "\x1b[2K" in text, "the line was not redrawn"
    assert "images/s" in text
    assert "communication" in text
