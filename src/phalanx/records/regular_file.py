"""Names and files that others may have made: a name stays in its folder, a file is a regular one.

A FIFO would block whoever opens it, a device never ends, and a link leads to files of somebody
else.
"""

from __future__ import annotations

import errno
import io
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated

from msgspec import Meta

from phalanx.errors import UserError

COMPONENT = r"\A\w[\w.-]*\Z"
"""Names of files and folders that a foreign file may hold: one component of a path, not hidden."""
FileName = Annotated[str, Meta(pattern=COMPONENT)]
_COMPONENT = re.compile(COMPONENT)


def is_component(name: str) -> bool:
    """Return whether a file of this name stays in the folder it is put into, and is not hidden."""
    return _COMPONENT.match(name) is not None


def component(name: str) -> str:
    """Return `name`, from a file or message of somebody else, if it is a component of a path.

    Raises: UserError for `..`, a name with a slash, a hidden one.
    """
    if not is_component(name):
        raise UserError(
            f"{name[:200]!r} is refused as a file name: use letters, digits, _, . and -, starting "
            "with a letter, a digit or _"
        )
    return name


def relative_path(text: str) -> Path:
    """Return a path of components. Raises: UserError as `component`."""
    return Path(*map(component, text.split("/")))


def is_own_folder(path: Path) -> bool:
    """Return whether this is a folder of this user's, and no link to one."""
    try:
        state = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid()


def open_regular(path: Path, *, follow_links: bool = True) -> io.BufferedReader:
    """Open a file for reading. Raises: OSError as `check_regular`, and for a link that is not to be
    followed."""
    flags = os.O_RDONLY if follow_links else os.O_RDONLY | os.O_NOFOLLOW
    return os.fdopen(_open(path, flags), "rb")


def open_lock(path: Path) -> IO[bytes]:
    """Open a file that is locked and may name its holder, made if it is missing; its content stays.

    Raises: OSError as `open_regular`; links are not followed.
    """
    return os.fdopen(_open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW), "ab")


def _open(path: Path, flags: int) -> int:
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink():
            raise OSError(errno.ELOOP, "Is a symbolic link", str(path)) from None
        if error.errno == errno.ENXIO:  # a socket, or a FIFO that nobody reads
            raise OSError(errno.EINVAL, "Not a regular file", str(path)) from None
        raise
    try:
        _check_mode(path, os.fstat(descriptor).st_mode)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def check_regular(path: Path) -> None:
    """Raises: OSError when there is no such file, or it is a folder, a FIFO, a socket or a device;
    its `strerror` and `filename` say so."""
    _check_mode(path, path.stat().st_mode)


def _check_mode(path: Path, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "Not a regular file", str(path))


def read_regular(path: Path) -> bytes:
    """Return the content of a file. Raises: OSError as `check_regular`."""
    with open_regular(path) as file:
        return file.read()


@contextmanager
def readable(path: Path | None = None) -> Iterator[None]:
    """Turn an OSError of the block into a UserError. path: None where the error names it."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path or error.filename} cannot be read: {error.strerror}") from error
