"""Folder that is made beside its place, hidden, and takes its name when it is whole."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from phalanx.data.file_lock import lock_file
from phalanx.data.packed.index import INDEX
from phalanx.errors import UserError
from phalanx.records.files import DECODE_ERRORS, write_atomically

ARGUMENTS, LOCK = ".arguments.json", ".lock"

Arguments = TypeVar("Arguments", bound=msgspec.Struct)


class HiddenFolder(Generic[Arguments]):
    """A folder in the making, locked while this object is not closed. What an interrupted process
    has left there is gone on with, if that had the same arguments."""

    def __init__(
        self, folder: Path, arguments: Arguments, *, source: str, overwrite: bool | None = None
    ) -> None:
        """source: what is written, for messages. overwrite: replace what is in `folder`, and
        remains of other arguments; None: the caller has no such option.

        Raises: UserError when `folder` is taken, another process is writing it, or an interrupted
                one had other arguments.
        """
        self._folder, self.path = folder, hidden_folder(folder)
        self._remedy = "remove it" if overwrite is None else "replace it with --overwrite"
        self._check_place(bool(overwrite))
        self.path.mkdir(parents=True, exist_ok=True)
        lock = lock_file(self.path / LOCK)
        if lock is None:
            raise UserError(f"{folder} is being packed by another process: wait for it")
        self._lock = lock
        try:
            begun = self._begun(type(arguments))
            if begun is None or (begun != arguments and overwrite):
                self._clear()
            elif begun != arguments:
                how = "" if overwrite is None else ", or start anew with --overwrite"
                raise UserError(
                    f"{self.path} holds part of a pack of "
                    f"{getattr(begun, 'source', '') or source}, which has changed or was packed "
                    f"with other options\nrepeat it to resume{how or ', or remove that folder'}"
                )
            write_atomically(self.path / ARGUMENTS, msgspec.json.encode(arguments))
        except BaseException:
            self.close()
            raise

    def publish(self) -> None:
        """Give the folder its name; what had it is removed then."""
        replaced = self._folder.absolute().parent / f".{self._folder.name}.replaced"
        shutil.rmtree(replaced, ignore_errors=True)
        if self._folder.exists() and any(self._folder.iterdir()):
            self._folder.rename(replaced)
        sync_folder(self.path)
        self.path.rename(self._folder)
        for name in (ARGUMENTS, LOCK):
            (self._folder / name).unlink(missing_ok=True)
        sync_folder(self._folder.absolute().parent)
        shutil.rmtree(replaced, ignore_errors=True)
        self.close()

    def close(self) -> None:
        """Give up the lock; what is there stays."""
        self._lock.close()

    def _check_place(self, overwrite: bool) -> None:
        folder = self._folder
        is_pack = is_pack_of(folder)
        if is_pack and not overwrite:
            raise UserError(f"{folder} is a pack already: use another folder, or {self._remedy}")
        if not is_pack and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"{folder} exists and is not a pack: use another folder")
        if folder.is_mount():
            raise UserError(f"{folder} is a mount point: use a folder in it")

    def _begun(self, kind: type[Arguments]) -> Arguments | None:
        """Return the arguments of what is there; None where there is nothing to go on with."""
        try:
            return msgspec.json.decode((self.path / ARGUMENTS).read_bytes(), type=kind)
        except (FileNotFoundError, *DECODE_ERRORS):
            return None

    def _clear(self) -> None:
        for path in self.path.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != LOCK:
                path.unlink()


def is_pack_of(folder: Path) -> bool:
    """Return whether a folder is a pack, or a split of one."""
    places = (folder, folder / "train", folder / "validation")
    return any((place / INDEX).is_file() for place in places)


def hidden_folder(folder: Path) -> Path:
    """Return the folder beside `folder` in which it is written."""
    return folder.absolute().parent / f".{folder.absolute().name}.packing"


def sync_folder(folder: Path) -> None:
    """Fsync a folder, where the file system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def writing(folder: Path, kept: str = "") -> Iterator[None]:
    """Raises: UserError for what the system says while a pack is written.

    kept: what stays of it, for the message.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise UserError(
                f"{folder}: {error.strerror} while packing{kept}\nfree some space, then repeat the "
                f"command to resume{', or remove that folder' if kept else ''}"
            ) from error
        raise UserError(
            f"{error.filename or folder} cannot be written: {error.strerror}"
        ) from error
