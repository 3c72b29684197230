"""A worker or a server that dies ends the run at once, by name; its last checkpoint is whole."""

import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from phalanx.checkpoints.find import find_checkpoint
from phalanx.errors import EXIT_LOST
from phalanx.jobs.installation import find_mpi
from phalanx.jobs.record import RUN_DIR
from phalanx.records.events import StartedEvent
from phalanx.records.files import read_events, read_run
from phalanx.records.progress import newest_saved
from tests.conftest import ONE_THREAD, PATIENCE, long

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300)]

WITHIN_S = 5.0
"""Two seconds on a machine of one's own; others test here as well."""


def begin(
    command: list[str], folder: Path, checkpoints: Path, *words: str, epochs: int = 500
) -> subprocess.Popen[str]:
    words = (
        *("train", "--dataset", "digits", "--threads", "1"),
        *("--train-samples", "2000", "--validation-samples", "100", "--epochs", str(epochs)),
        *("--run-dir", str(folder), "--checkpoint-dir", str(checkpoints), *words),
    )
    environment = {**os.environ, **ONE_THREAD}
    return subprocess.Popen(
        [*command, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def process_of(folder: Path, rank: int) -> int:
    first = next(iter(read_events(folder / f"rank-{rank}.jsonl")))
    assert isinstance(first, StartedEvent)
    return first.process_id


def wait_for_checkpoint(checkpoints: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 100
    while not list(checkpoints.glob("epoch-*/manifest.json")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "no checkpoint within 100 s"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("words", "rank", "role"),
    [
        ("server --ranks 3 --servers 1", 2, "server"),
        ("server --ranks 4 --servers 2 --server-mode bounded", 1, "worker"),
        ("server --ranks 4 --servers 2 --server-mode asynchronous", 3, "server"),
        ("local --ranks 2 --local-steps 4", 1, "worker"),
    ],
)
def test_who_died_is_named_and_the_last_checkpoint_is_whole(
    command: list[str], tmp_path: Path, words: str, rank: int, role: str
) -> None:
    folder, checkpoints = tmp_path / "run", tmp_path / "checkpoints"
    process = begin(command, folder, checkpoints, "--strategy", *words.split())
    try:
        wait_for_checkpoint(checkpoints, process)
        os.kill(process_of(folder, rank), signal.SIGKILL)
        killed_at = time.monotonic()
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    took_s = time.monotonic() - killed_at
    assert process.returncode == code_of_loss(folder)
    # The launcher ends all when it notices; who waits in shared memory may notice before it.
    named = rf"rank {rank}(, a {role},)? failed( first \(SIGKILL\)|: its process is gone)"
    if find_mpi(os.environ).vendor != "openmpi":  # Hydra may kill the others in the same moment
        named += rf"|ranks ended without a word .*unfinished: [^.]*\b{rank}\b"
    assert re.search(named, errors), errors
    assert read_run(folder).outcome.status == "failed"
    assert took_s < WITHIN_S
    assert find_checkpoint(checkpoints).manifest.epochs_done >= 1
    left = [p for p in psutil.process_iter(["cmdline"]) if str(folder) in (p.info["cmdline"] or [])]
    assert not left
    print(f"ended after {took_s:.2f} s")


def code_of_loss(folder: Path) -> int:
    """Return the exit code of a run that has lost a rank: another one after a checkpoint."""
    return 1 if newest_saved(folder) is None else EXIT_LOST


def wait_for_steps(folder: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 100
    path = folder / "rank-1.jsonl"
    while not path.exists() or path.read_text().count('"step"') < 10:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "no steps within 100 s"
        time.sleep(0.02)


def end_of(process: subprocess.Popen[str], folder: Path) -> tuple[float, str]:
    """Seconds until the run has ended, and what it printed on standard error."""
    began = time.monotonic()
    try:
        _, errors = process.communicate(timeout=100)
    finally:
        process.kill()
    assert process.returncode == 1, errors
    assert "Traceback" not in errors
    assert len(errors.splitlines()) <= 4, errors
    outcome = read_run(folder).outcome
    assert outcome.status == "failed"
    assert (outcome.error or "").splitlines()[0] in errors
    return time.monotonic() - began, errors


def test_a_rank_that_cannot_write_ends_the_run_at_once(command: list[str], tmp_path: Path) -> None:
    """Writing the error down failed as well, and nobody told the other ranks: they waited for the
    whole timeout, and the record said for ever that the run was running."""
    folder = tmp_path / "run"
    words = ("--strategy", "mpi", "--ranks", "2", "--timeout-s", "60")
    process = begin(command, folder, tmp_path / "checkpoints", *words)
    wait_for_steps(folder, process)
    resource.prlimit(process_of(folder, 1), resource.RLIMIT_FSIZE, (0, 0))
    took_s, errors = end_of(process, folder)
    who = "rank 1" if find_mpi(os.environ).vendor == "openmpi" else "a rank"
    assert f"{who} could not write its records" in errors
    assert took_s < 30


@pytest.mark.parametrize("strategy", ["mpi", long("gloo")])
def test_a_full_disk_ends_records_and_no_training(
    command: list[str], tmp_path: Path, strategy: str
) -> None:
    """It ended the run at once."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("may not mount a file system")
    try:
        folder = disk / "run"
        words = ("--strategy", strategy, "--ranks", "2")
        process = begin(command, folder, tmp_path / "checkpoints", *words, epochs=60)
        wait_for_steps(folder, process)
        with (disk / "others").open("wb", buffering=0) as file:
            while process.poll() is None:  # also what the run itself frees
                with contextlib.suppress(OSError):
                    while file.write(bytes(4096)):
                        pass
                time.sleep(0.02)
        _, errors = process.communicate(timeout=100 * PATIENCE)
        outcome = read_run(folder).outcome
        assert (process.returncode, outcome.status) == (0, "completed"), errors
        why = "records of 2 of 2 ranks end before it: "
        assert outcome.error is not None and outcome.error.startswith(why)
        assert f"phalanx: the run completed; {outcome.error}" in errors
        assert find_checkpoint(tmp_path / "checkpoints").manifest.epochs_done == 60
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_record_that_is_missing_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "-m", "phalanx.train"],
        capture_output=True,
        text=True,
        env={**os.environ, **ONE_THREAD, RUN_DIR: str(folder)},
    )
    assert done.returncode == 2
    assert done.stderr == f"phalanx: {folder / 'run.json'} does not exist\n"
    assert not folder.exists()
