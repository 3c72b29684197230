"""What is taken away after a job, and above all what is not."""

import mmap
import os
import secrets
import subprocess
import time
from pathlib import Path

import pytest

from phalanx.jobs.leftovers import (
    SHARED_MEMORY,
    abandoned_segments,
    kill_process,
    leftovers_of,
    remove,
    segment_or_session,
    siblings,
)
from phalanx.jobs.orphan import JOB_VARIABLE

NEEDS_SHARED_MEMORY = pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="no /dev/shm")


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("/dev/shm/sm_segment.host.0.fc6e0001.1", "/dev/shm/sm_segment.host.0.fc6e0001.1"),
        ("/dev/shm/mpich_shm_53143c69_0", "/dev/shm/mpich_shm_53143c69_0"),
        ("/dev/shm/Intel_MPI_XIsQNh", "/dev/shm/Intel_MPI_XIsQNh"),
        ("/tmp/ompi.7/1/pmix-gds-shmem2.host-prterun-host-7@1.jobdata.7", "/tmp/ompi.7"),
        ("/tmp/ompi.8/1/pmix-gds-shmem2.host-prterun-host-8@1.jobdata.8", None),  # another job's
        ("/dev/shm/images-of-the-user.npy", None),
        ("/dev/shm/folder/sm_segment.host.0.fc6e0001.1", None),
        ("/home/user/sm_segment.host.0.fc6e0001.1", None),
        ("/usr/lib/locale/C.utf8", None),
    ],
)
def test_what_belongs_to_the_job_whose_launcher_is_process_7(file, expected):
    found = segment_or_session(Path(file), {7})
    assert found == (None if expected is None else Path(expected))


def test_remove_is_content_with_what_is_gone(tmp_path):
    (tmp_path / "session" / "0").mkdir(parents=True)
    (tmp_path / "segment").write_bytes(b"x")
    remove([tmp_path / "session", tmp_path / "segment", tmp_path / "never-was"])
    assert list(tmp_path.iterdir()) == []


@NEEDS_SHARED_MEMORY
def test_a_segment_in_use_is_seen_and_is_not_abandoned():
    segment = SHARED_MEMORY / f"mpich_shm_test_{os.getpid()}"
    try:
        segment.write_bytes(bytes(4096))
        assert segment in abandoned_segments()
        with segment.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
            assert segment not in abandoned_segments()
            assert leftovers_of([os.getpid()], []) == {segment}
    finally:
        segment.unlink()


@NEEDS_SHARED_MEMORY
def test_segments_of_the_same_job_of_open_mpi_go_with_those_that_were_seen() -> None:
    """Of a rank that was killed as it started, which nobody had seen map its own."""
    job = f"sm_segment.host.{os.geteuid()}.{os.getpid():x}0001"
    seen, unseen, other = (
        SHARED_MEMORY / f"{name}.{n}" for n, name in enumerate((job, job, job + "a"))
    )
    try:
        for path in (seen, unseen, other):
            path.touch()
        assert siblings([seen]) == {seen, unseen}
    finally:
        remove([seen, unseen, other])


def test_one_process_of_a_job_is_killed_even_stopped_with_what_is_above_it() -> None:
    """Its shell is let go on, or nobody would learn of the death."""
    token = f"{os.getpid()}.{secrets.token_hex(8)}"
    script = "sleep 60 & echo $!; kill -STOP $! $$; wait $!; exit 7"
    shell = subprocess.Popen(
        ["sh", "-c", script],
        env={**os.environ, JOB_VARIABLE: token},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert shell.stdout is not None
    pid = int(shell.stdout.readline())
    try:
        while Path(f"/proc/{shell.pid}/stat").read_text().rpartition(") ")[2][0] != "T":
            time.sleep(0.01)
        assert not kill_process(token + "0", pid)
        assert kill_process(token, pid)
        assert shell.wait(10) == 7
        assert not kill_process(token, pid)
    finally:
        shell.kill()
        shell.stdout.close()
