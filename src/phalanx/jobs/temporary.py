"""The temporary folder of a job, removed at its end, or by the next job if we are killed."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = "phalanx-job-"
_LOCK = ".lock"
_SETTLED_S = 60.0
"""Age below which a folder is kept: its owner may not have locked it yet."""


@contextlib.contextmanager
def job_folder() -> Iterator[Path]:
    """Make a folder, and remove it at the end of the block."""
    sweep(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=_prefix(), ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with (folder / _LOCK).open("w") as lock:
            with contextlib.suppress(OSError):  # nothing is removed if locks fail
                fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel releases it when we die
            yield folder


def sweep(root: Path) -> None:
    """Remove the folders in `root` of killed jobs of this machine."""
    with contextlib.suppress(OSError):
        for folder in root.glob(f"{glob.escape(_prefix())}*"):
            if _is_abandoned(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _prefix() -> str:
    """Return the prefix with the host name: locks of other hosts may be invisible."""
    return f"{PREFIX}{socket.gethostname()}-"


def _is_abandoned(folder: Path) -> bool:
    try:
        state = folder.lstat()
        if state.st_uid != os.geteuid() or time.time() - state.st_mtime < _SETTLED_S:
            return False
        with (folder / _LOCK).open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except OSError:
        return False
