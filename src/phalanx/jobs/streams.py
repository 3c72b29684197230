"""Standard output and error that accept any text, also when closed or on a full disk."""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
from typing import Any

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)


def prepare_streams() -> None:
    """Replace characters that a stream cannot encode, and discard output to a closed stream."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            # Takes the stream's descriptor, the lowest free one, so that no other file gets it.
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


class _Output(io.FileIO):
    """Output into a file, which loses what a full disk does not take: no log ends a program."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except OSError as error:
            if error.errno not in _FULL:
                raise
            return memoryview(data).nbytes


def lose_what_the_disk_refuses() -> None:
    """Let output into files lose what a full disk does not take."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        former = getattr(sys, name)
        if former is not None and stat.S_ISREG(os.fstat(descriptor).st_mode):
            raw = _Output(descriptor, "w", closefd=False)
            options = {"encoding": former.encoding, "errors": former.errors, "newline": "\n"}
            stream = io.TextIOWrapper(raw, write_through=True, **options)
            setattr(sys, name, stream)
