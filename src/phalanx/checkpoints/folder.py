"""Checkpoint folders on the disk: published whole or not at all, and never lost while replaced.

A checkpoint is written into a hidden folder, brought to the disk, and renamed. One that is already
there is renamed aside first and removed last, so that a kill at any point leaves the old checkpoint
or the new one: `readable_folders` finds it under either name. No torch.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

import msgspec

from phalanx.errors import UserError
from phalanx.records.owner import is_alive, this_process
from phalanx.records.regular_file import open_lock, read_regular
from phalanx.records.schema import Owner

LOCK = ".lock"
ARRAY_TASK = ".array-task"
"""File that names the task of a job array whose checkpoints these are."""
_LOCK_WITHIN_S = 0.5
"""Seconds for another process to have looked whether the folder is locked, or to have ended."""
_HIDDEN = re.compile(r"\.(epoch-\d+(?:-[a-z]+-\d+)?)\.(.+)")
_NEW, _ASIDE, _REMOVED = "new", "old", "removed"


def readable_folders(folder: Path) -> list[Path]:
    """Return the checkpoint folders in `folder`, and those set aside whose successor is missing."""
    if not folder.is_dir():
        return []
    visible = sorted(path for path in folder.glob("epoch-*") if path.is_dir())
    names = {path.name for path in visible}
    return visible + [p for p, name in _hidden(folder, _ASIDE) if name not in names]


def begin(target: Path) -> Path:
    """Make the empty hidden folder that is to become `target`. Raises: OSError."""
    new = hidden_new(target)
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    return new


def hidden_new(target: Path) -> Path:
    """Return the hidden folder that is to become `target`."""
    return _hidden_path(target, _NEW)


@contextlib.contextmanager
def replacing(target: Path, *, is_begun: bool = False) -> Iterator[Path]:
    """Give an empty hidden folder to fill, and publish it as `target` at the end of the block.

    Nothing is left of it when the block fails, a request to end included; `target` is as it was
    before then. is_begun: `begin` has made it. Raises: OSError.
    """
    new = hidden_new(target) if is_begun else begin(target)
    try:
        yield new
        publish(new, target)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        _restore(target)
        raise


def publish(new: Path, target: Path) -> None:
    """Bring the files of `new` to the disk and rename it to `target`, in the place of what is
    there. Raises: OSError."""
    for path in (*sorted(new.iterdir()), new):
        sync(path)
    aside = _hidden_path(target, _ASIDE)
    if target.exists():
        shutil.rmtree(aside, ignore_errors=True)
        target.rename(aside)
    new.rename(target)
    sync(target.parent)
    shutil.rmtree(aside, ignore_errors=True)


def remove(checkpoint: Path) -> None:
    """Remove a checkpoint, which is hidden first: none is ever seen in part."""
    hidden = _hidden_path(checkpoint, _REMOVED)
    try:
        checkpoint.rename(hidden)
    except OSError:
        return  # gone already, or not ours to remove
    shutil.rmtree(hidden, ignore_errors=True)


class FolderLock:
    """A folder that is this process's to write checkpoints into, until it is closed or the process
    has ended."""

    def __init__(self, file: IO[bytes]) -> None:
        """file: locked; it holds the owner, for whom it refuses."""
        self._file = file
        # A forked worker of a data loader would keep the lock of a process that was killed.
        os.register_at_fork(after_in_child=file.close)
        with contextlib.suppress(OSError):  # a full disk: the lock holds all the same
            file.truncate(0)
            file.write(msgspec.json.encode(this_process()))
            file.flush()

    def close(self) -> None:
        """Let others have the folder."""
        if self._file.closed:
            return
        with contextlib.suppress(OSError):
            self._file.truncate(0)
        self._file.close()


def lock(folder: Path, *, within_s: float = 0.0) -> FolderLock:
    """Make `folder` this process's to write checkpoints into, and sweep what killed runs left.

    within_s: how long another run may take to let go of it.

    Where the file system has no locks, the process that is named in the file counts while it runs
    on this machine, and nothing is swept: the hidden folders might be those of a living run.
    Raises: UserError when another run has it, or it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open_lock(folder / LOCK)
    except OSError as error:
        what = f"{LOCK}: " * (error.errno in (errno.ELOOP, errno.EINVAL))
        raise UserError(
            f"checkpoint_dir={folder} cannot be written: {what}{error.strerror or error}"
        ) from error
    has_locks = True
    try:
        _lock_within(file, max(within_s, _LOCK_WITHIN_S))
    except BlockingIOError:
        file.close()
        raise _another_run(folder) from None
    except OSError:  # a file system without locks
        has_locks = False
        if is_alive(_owner(folder)):
            file.close()
            raise _another_run(folder) from None
    locked = FolderLock(file)
    try:
        _check_array_task(folder)
    except UserError:
        locked.close()
        raise
    if task := _array_task(os.environ):
        (folder / ARRAY_TASK).write_text(" ".join(task))
    if has_locks:
        sweep(folder)
    return locked


def _array_task(environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Return job and task of a job array of Slurm or PBS; None for another job."""
    for job, task in (
        ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"),
        ("PBS_ARRAY_ID", "PBS_ARRAY_INDEX"),
    ):
        if environ.get(job) and environ.get(task):
            return environ[job].partition("[")[0], environ[task]
    return None


def _check_array_task(folder: Path) -> None:
    """Raise UserError where another task of the same job array has the folder: the last would
    resume from, or write over, what the first has written."""
    task, found = _array_task(os.environ), tuple[str, ...]()
    with contextlib.suppress(OSError, UnicodeDecodeError):
        found = tuple((folder / ARRAY_TASK).read_text().split())
    if task and len(found) == 2 and found[0] == task[0] and found != task:
        raise UserError(
            f"checkpoint_dir={folder} has the checkpoints of task {found[1]} of job array "
            f"{task[0]}, but this is task {task[1]}: give each task a separate folder, such as "
            f"{folder}-{task[1]}"
        )


def _lock_within(file: IO[bytes], seconds: float) -> None:
    """Lock a file for this process alone. Raises: BlockingIOError when another process keeps it."""
    until = time.monotonic() + seconds
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise
        time.sleep(_LOCK_WITHIN_S / 10)


def _owner(folder: Path) -> Owner | None:
    try:
        return msgspec.json.decode(read_regular(folder / LOCK), type=Owner)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def _another_run(folder: Path) -> UserError:
    owner = _owner(folder)
    who = "" if owner is None else f" (process {owner.process_id} on {owner.hostname})"
    return UserError(
        f"checkpoint_dir={folder}: another run is writing its checkpoints there{who}: wait for it, "
        "end it by run.close(), or use another folder"
    )


def sweep(folder: Path) -> None:
    """Remove what killed runs left in `folder`; a checkpoint set aside gets its name back where its
    successor is missing."""
    for path, name in _hidden(folder, _ASIDE):
        _restore(folder / name)
        shutil.rmtree(path, ignore_errors=True)
    for path, _ in _hidden(folder):
        shutil.rmtree(path, ignore_errors=True)


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def unfinished_folders(folder: Path) -> list[Path]:
    """Return the hidden folders of checkpoints that were never finished, or are being written."""
    if not folder.is_dir():
        return []
    return [path for path, _ in _hidden(folder, _NEW)]


def _restore(target: Path) -> None:
    aside = _hidden_path(target, _ASIDE)
    if aside.is_dir() and not target.exists():
        aside.rename(target)


def _hidden_path(target: Path, kind: str) -> Path:
    return target.with_name(f".{target.name}.{kind}")


def _hidden(folder: Path, kind: str | None = None) -> list[tuple[Path, str]]:
    """Hidden folders, of one kind or all, each with the name of its checkpoint."""
    found = []
    for path in sorted(folder.iterdir()):
        match = _HIDDEN.fullmatch(path.name)
        if match and path.is_dir() and kind in (None, match[2]):
            found.append((path, match[1]))
    return found
