"""A run that does not stop within the grace period is ended, and keeps its checkpoints."""

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from phalanx.checkpoints.find import find_newest
from phalanx.records.files import read_run
from tests.conftest import ONE_THREAD, PATIENCE, forked_phalanx, long

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(120)]
PROGRAM = Path(__file__).parent / "programs" / "slow_to_stop.py"
GRACE_S = 1.0
ENDED_S = 15.0
"""For the ranks to be ended after the grace period, and the command with them."""


def command(folder: Path, name: str, *words: object) -> list[str]:
    options = ["-n", 2, "--threads", 1, "--grace-s", GRACE_S, "--log-dir", folder / name]
    return [*forked_phalanx(), "launch", *map(str, [*options, PROGRAM, *words])]


@pytest.mark.parametrize("slow", [long("step"), "checkpoint"])
def test_ranks_that_do_not_stop_in_time_are_ended_and_go_on_from_an_earlier_checkpoint(
    tmp_path: Path, slow: str
) -> None:
    environment = {**os.environ, **ONE_THREAD}
    with subprocess.Popen(
        command(tmp_path, "logs", tmp_path, slow),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    ) as process:
        until = time.monotonic() + 60 * PATIENCE
        while not (tmp_path / "slow-0").exists():
            assert time.monotonic() < until and process.poll() is None
            time.sleep(0.02)
        process.terminate()
        asked_at = time.monotonic()
        said, _ = process.communicate(timeout=60 * PATIENCE)
    took_s = time.monotonic() - asked_at
    assert process.returncode == 128 + signal.SIGINT, said
    assert GRACE_S <= took_s < GRACE_S + ENDED_S * PATIENCE
    why = "asked to stop, but did not stop within the grace period of 1 s (--grace-s)"
    assert why in said
    outcome = read_run(tmp_path / "logs").outcome
    assert outcome.status == "interrupted" and why in (outcome.error or "")
    words = (each.info["cmdline"] or [] for each in psutil.process_iter(["cmdline"]))
    assert not [found for found in words if str(tmp_path) in " ".join(found)]
    found, skipped = find_newest(tmp_path / "checkpoints")
    assert found is not None
    assert [line.endswith(".new was not finished") for line in skipped] == [True] * len(skipped)
    assert bool(skipped) == (slow == "checkpoint")
    done = subprocess.run(
        command(tmp_path, "again", tmp_path),
        capture_output=True,
        text=True,
        timeout=60 * PATIENCE,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"resuming from {found.path}" in done.stdout
    assert not list((tmp_path / "checkpoints").glob(".*.new"))
    assert read_run(tmp_path / "again").outcome.status == "completed"
