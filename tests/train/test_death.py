"""A worker or a server that dies ends the run at once, by name; its last checkpoint is whole."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from phalanx.records.files import read_events, read_run
from phalanx.records.schema import Started
from phalanx.train.manifest import find_checkpoint, read_manifest
from tests.conftest import ONE_THREAD, Ranks

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300)]

WITHIN_S = 5.0
"""Two seconds on a machine of one's own; others test here as well."""


def begin(folder: Path, checkpoints: Path, *words: str) -> subprocess.Popen[str]:
    command = (
        *(sys.executable, "-m", "phalanx", "train", "--dataset", "digits", "--threads", "1"),
        *("--train-samples", "2000", "--validation-samples", "100", "--epochs", "500"),
        *("--run-dir", str(folder), "--checkpoint-dir", str(checkpoints), *words),
    )
    environment = {**os.environ, **ONE_THREAD}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def process_of(folder: Path, rank: int) -> int:
    first = next(iter(read_events(folder / f"rank-{rank}.jsonl")))
    assert isinstance(first, Started)
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
        ("server --ranks 3 --servers 1", 0, "server"),
        ("server --ranks 4 --servers 2 --server-mode bounded", 3, "worker"),
        ("server --ranks 4 --servers 2 --server-mode asynchronous", 1, "server"),
        ("local --ranks 2 --local-steps 4", 1, "worker"),
    ],
)
def test_who_died_is_named_and_the_last_checkpoint_is_whole(
    ranks: Ranks, tmp_path: Path, words: str, rank: int, role: str
) -> None:
    folder, checkpoints = tmp_path / "run", tmp_path / "checkpoints"
    process = begin(folder, checkpoints, "--strategy", *words.split())
    try:
        wait_for_checkpoint(checkpoints, process)
        os.kill(process_of(folder, rank), signal.SIGKILL)
        killed_at = time.monotonic()
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    took_s = time.monotonic() - killed_at
    assert process.returncode == 1
    # The launcher ends all when it notices; who waits in shared memory may notice before it.
    assert re.search(
        rf"rank {rank}(, a {role}, ended without a word| failed: its process is gone)", errors
    ), errors
    assert read_run(folder).outcome.status == "failed"
    assert took_s < WITHIN_S
    assert read_manifest(find_checkpoint(checkpoints)).epochs_done >= 1
    left = [p for p in psutil.process_iter(["cmdline"]) if str(folder) in (p.info["cmdline"] or [])]
    assert not left
    print(f"ended after {took_s:.2f} s")
