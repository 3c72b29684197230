"""A kill at any point leaves the old checkpoint or the new one, and nothing hidden for ever."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from phalanx.checkpoints import folder as checkpoint_folder
from phalanx.checkpoints.folder import (
    LOCK,
    lock,
    readable_folders,
    remove,
    replacing,
)
from phalanx.errors import UserError

OLD, NEW = b"old", b"new"


def write(folder: Path, content: bytes) -> None:
    """Two files, which belong together."""
    with replacing(folder / "epoch-0001") as new:
        for name in ("model", "optimizer"):
            (new / name).write_bytes(content)


def contents(folder: Path) -> bytes:
    """Of the one checkpoint in `folder`, whose files belong together."""
    (found,) = readable_folders(folder)
    parts = {path.name: path.read_bytes() for path in found.iterdir()}
    assert parts.keys() == {"model", "optimizer"}, "a checkpoint in part"
    assert parts["model"] == parts["optimizer"]
    return parts["model"]


def killed_after(number: int, work: Callable[[], None]) -> bool:
    """Run `work` in a process that is killed at its `number`th call that changes the disk."""
    process = os.fork()
    if not process:
        left = number

        def counting(real: Callable[..., object]) -> Callable[..., object]:
            def call(*args: object, **options: object) -> object:
                nonlocal left
                if not left:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1
                return real(*args, **options)

            return call

        for name in ("rename", "mkdir", "unlink", "rmdir", "fsync", "open"):
            setattr(os, name, counting(getattr(os, name)))
        Path.write_bytes = counting(Path.write_bytes)  # type: ignore[method-assign, assignment]
        work()
        os._exit(0)
    _, status = os.waitpid(process, 0)
    return os.WIFSIGNALED(status)


def test_a_kill_at_any_point_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    found, number = [], 0
    while True:
        folder = tmp_path / str(number)
        write(folder, OLD)
        was_killed = killed_after(number, lambda: write(folder, NEW))  # noqa: B023
        found.append(contents(folder))
        # What the next run does: it sweeps, and the same checkpoint is still there.
        with closing(lock(folder)):
            assert contents(folder) == found[-1]
            assert {path.name for path in folder.iterdir()} == {"epoch-0001", LOCK}
        write(folder, NEW)
        assert contents(folder) == NEW
        if not was_killed:
            break
        number += 1
    assert number > 10, "calls that were counted"
    assert found == sorted(found, reverse=True), "first the old, then the new, for good"
    assert {OLD, NEW} == set(found)


def test_removing_is_never_seen_in_part(tmp_path: Path) -> None:
    number, was_killed = 0, True
    while was_killed:
        folder = tmp_path / str(number)
        write(folder, OLD)
        was_killed = killed_after(number, lambda: remove(folder / "epoch-0001"))  # noqa: B023
        if readable_folders(folder):
            assert contents(folder) == OLD
        with closing(lock(folder)):
            assert {path.name for path in folder.iterdir()} <= {"epoch-0001", LOCK}
        number += 1
    assert number > 3
    assert not readable_folders(folder)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, OSError])
def test_a_failed_write_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    write(tmp_path, OLD)
    with pytest.raises(error), replacing(tmp_path / "epoch-0001") as new:
        (new / "model").write_bytes(NEW)
        raise error
    assert os.listdir(tmp_path) == ["epoch-0001"]
    assert contents(tmp_path) == OLD


def test_a_failed_exchange_brings_the_old_one_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, OLD)
    rename = Path.rename

    def failing(path: Path, target: Path) -> Path:
        if path.name.endswith(".new"):
            raise OSError("no more")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match="no more"):
        write(tmp_path, NEW)
    assert os.listdir(tmp_path) == ["epoch-0001"]
    assert contents(tmp_path) == OLD


def test_what_older_versions_left_is_swept(tmp_path: Path) -> None:
    """Also that of the same process id, as every process of a container has."""
    names = (f".epoch-0001.{os.getpid()}", ".epoch-0002.parts", ".epoch-0003-step-000004.kept")
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "model").write_bytes(OLD)
    (tmp_path / ".epochs").mkdir()
    with closing(lock(tmp_path)):
        assert sorted(os.listdir(tmp_path)) == [".epochs", LOCK]
    write(tmp_path, NEW)


def test_a_folder_that_another_run_writes_is_left_alone(tmp_path: Path) -> None:
    with closing(lock(tmp_path)):
        (tmp_path / ".epoch-0001.new").mkdir()  # of the run that has the lock
        process = os.fork()
        if not process:
            try:
                lock(tmp_path)
            except UserError as error:
                os._exit(7 if "another run is writing" in str(error) else 8)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 7
        assert (tmp_path / ".epoch-0001.new").exists()
    lock(tmp_path).close()
    assert not (tmp_path / ".epoch-0001.new").exists()


def test_tasks_of_a_job_array_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wrote into the same one without a word: the second resumed from the first's."""
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "8")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "1")
    for _ in range(2):  # it is queued again
        lock(tmp_path).close()
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "2")
    with pytest.raises(UserError, match=r"task 1 of job array 8, but this is task 2: .*-2"):
        lock(tmp_path)
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "9")  # submitted anew
    lock(tmp_path).close()
    monkeypatch.delenv("SLURM_ARRAY_JOB_ID")
    lock(tmp_path).close()


def test_a_killed_process_keeps_no_lock_through_its_workers(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    process = os.fork()
    if not process:
        lock(tmp_path)
        worker = os.fork()
        if worker:
            os.write(writer, str(worker).encode())
        signal.pause()
    worker = int(os.read(reader, 20))
    try:
        with pytest.raises(
            UserError, match=rf"writing its checkpoints there \(process {process} on"
        ):
            lock(tmp_path)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        lock(tmp_path).close()
    finally:
        os.kill(worker, signal.SIGKILL)


def test_another_run_may_take_its_time_to_let_go(tmp_path: Path) -> None:
    """A rank that was cut off has the folder until it gives up, and the run has been started again
    on the nodes that are left."""
    reader, writer = os.pipe()
    process = os.fork()
    if not process:
        lock(tmp_path)
        os.write(writer, b"locked")
        time.sleep(1.5)
        os._exit(0)
    os.read(reader, 6)
    with pytest.raises(UserError, match="another run is writing"):
        lock(tmp_path)
    lock(tmp_path, within_s=30).close()
    os.waitpid(process, 0)


def test_without_locks_nothing_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError("no locks here")

    (tmp_path / ".epoch-0001.new").mkdir()
    monkeypatch.setattr(checkpoint_folder.fcntl, "flock", refused)
    lock(tmp_path).close()
    assert (tmp_path / ".epoch-0001.new").exists()
    write(tmp_path, NEW)  # into the very folder that was left
    assert contents(tmp_path) == NEW


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir(mode=0o500)
    process = os.fork()
    if not process:
        if os.geteuid() == 0:
            os.setuid(65534)  # root may write anywhere
        try:
            lock(tmp_path / "saved")
        except UserError as error:
            os._exit(7 if "saved cannot be written: Permission denied" in str(error) else 8)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 7


@pytest.mark.timeout(60)
def test_a_lock_of_somebody_else_is_neither_followed_nor_waited_for(tmp_path: Path) -> None:
    """The lock of a foreign folder was a link: the file that it led to was emptied. A FIFO of that
    name hung the start."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / LOCK).symlink_to(victim)
    with pytest.raises(UserError, match=r"cannot be written: \.lock: Is a symbolic link"):
        lock(tmp_path)
    assert victim.read_text() == "mine"
    (tmp_path / LOCK).unlink()
    os.mkfifo(tmp_path / LOCK)
    with pytest.raises(UserError, match=r"cannot be written: \.lock: Not a regular file"):
        lock(tmp_path)
