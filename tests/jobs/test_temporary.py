"""A job's temporary folder is gone after it, or after the next job where it was killed."""

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from phalanx.jobs.temporary import job_folder, sweep

PROGRAM = """
import sys, time
from phalanx.jobs.temporary import job_folder
with job_folder() as folder:
    (folder / "data").write_bytes(b"x" * 100)
    print(folder, flush=True)
    time.sleep(100)
"""


def age(folder: Path) -> None:
    """Make it ten minutes old."""
    os.utime(folder, (time.time() - 600,) * 2)


def test_the_folder_of_a_killed_job_is_swept_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    others = [tmp_path / name for name in ("phalanx-job-x", "phalanx-job-another-host-x")]
    for folder in others:
        folder.mkdir()
        (folder / ".lock").touch()
        age(folder)
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, env=environment, text=True
    ) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        age(folder)
        sweep(tmp_path)
        assert (folder / "data").exists(), "its job still runs"
        process.kill()
    sweep(tmp_path)
    assert folder.parent == tmp_path
    assert set(tmp_path.iterdir()) == set(others)
    with job_folder() as ours:
        assert ours.parent == tmp_path
        age(ours)
        sweep(tmp_path)
        assert ours.is_dir()
    assert not ours.exists()


def test_without_locks_jobs_begin_and_nothing_is_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some network file systems have none: every run failed with "Function not implemented"."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("fcntl.flock", refuse)
    with job_folder() as ours:
        age(ours)
        sweep(tmp_path)
        assert ours.is_dir()
    assert not ours.exists()
