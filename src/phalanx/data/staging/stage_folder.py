"""Folder on a node's local disk for staged shards: private to one run, removed at its end."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from phalanx.data.file_lock import lock_file
from phalanx.data.packed.verify import file_fault
from phalanx.data.staging.stage_schedule import StageUnit
from phalanx.errors import UserError
from phalanx.records.regular_file import is_own_folder

PREFIX = "phalanx-stage-"
LOCK, KEPT = ".lock", ".kept"


class StageFolder:
    """A folder that is locked while the run lasts. Leftovers of killed runs beside it are removed
    first; shards that an earlier run on the same data has kept are reused."""

    def __init__(self, path: Path, fingerprint: str, *, keep: bool) -> None:
        """path: see `stage_path`. fingerprint: of the data.

        Raises: UserError when the folder cannot be written, or is somebody else's.
        """
        self.path, self._keep = path, keep
        self._kept_path = path.parent / f"{PREFIX}{fingerprint}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _remove_leftovers(path.parent)
            if not is_own_folder(self._kept_path) or not _try_rename(self._kept_path, path):
                path.mkdir(mode=0o700, exist_ok=True)
            if not is_own_folder(path):
                raise UserError(
                    f"{path} belongs to another user, who could change staged files: use another "
                    "folder for --stage"
                )
            self._lock = lock_file(path / LOCK)
            (path / KEPT).unlink(missing_ok=True)
        except OSError as error:
            raise UserError(
                f"--stage {path.parent} cannot be written: {error.strerror or error}"
            ) from error

    def folder_of(self, unit: StageUnit) -> Path:
        """Return the folder of its files, created if missing."""
        folder = self.path / unit.split
        folder.mkdir(exist_ok=True)
        return folder

    def holds(self, unit: StageUnit) -> bool:
        """Return whether its files exist with the right size and SHA-256. Cost: they are read."""
        return not any(file_fault(self.path / unit.split, file) for file in unit.files)

    def remove(self, unit: StageUnit) -> None:
        for file in unit.files:
            (self.path / unit.split / file.name).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the folder, or keep it for the next run on the same data."""
        with suppress(OSError):
            if self._keep:
                (self.path / KEPT).touch()
            if not self._keep or not _try_rename(self.path, self._kept_path):
                shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            self._lock.close()


def stage_path(folder: Path, fingerprint: str, run: str, node: int) -> Path:
    """Return a path unique to the run and node, in case nodes share the disk."""
    return folder / f"{PREFIX}{fingerprint}-{run}-{node}"


def _try_rename(old: Path, new: Path) -> bool:
    """Rename a folder; return False when it does not exist or the name is taken."""
    try:
        old.rename(new)
    except OSError:
        return False
    return True


def _remove_leftovers(folder: Path) -> None:
    """Remove stage folders that no run has locked and none has kept."""
    for path in folder.glob(f"{PREFIX}*"):
        if not is_own_folder(path) or (path / KEPT).exists() or not (path / LOCK).exists():
            continue
        lock = lock_file(path / LOCK)
        if lock is not None:
            shutil.rmtree(path, ignore_errors=True)
            lock.close()
