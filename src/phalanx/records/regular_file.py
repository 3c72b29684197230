"""Files that must be regular: a FIFO would block whoever opens it, and a device never ends."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def check_regular(path: Path) -> None:
    """Raises: OSError when there is no such file, or it is a folder, a FIFO, a socket or a device;
    its `strerror` and `filename` say so."""
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
