"""Samples kept in a temporary file, so that a source that can be read once is read in any order."""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
from array import array
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from phalanx.data.packing.table import Part
from phalanx.errors import UserError


class SampleSpool:
    """Samples in a file in the folder for temporary files ($TMPDIR)."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `close`
        self._digest = hashlib.sha256()
        self._ends = array("q", [0])

    def __len__(self) -> int:
        return len(self._ends) - 1

    @property
    def digest(self) -> str:
        """Hash of all samples."""
        return self._digest.hexdigest()[:16]

    def add(self, parts: Mapping[str, Part]) -> None:
        """Append a sample. Raises: UserError when the disk is full."""
        content = msgspec.msgpack.encode({name: _encoded(part) for name, part in parts.items()})
        self._digest.update(content)
        self._ends.append(self._ends[-1] + len(content))
        try:
            self._file.write(content)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise UserError(
                f"{tempfile.gettempdir()} is full: samples are kept there until they are packed; "
                "name a folder on another disk by TMPDIR=…"
            ) from error

    def read(self, number: int) -> dict[str, Part]:
        """Return a sample, by its number."""
        self._file.flush()
        start, end = self._ends[number : number + 2]
        content = os.pread(self._file.fileno(), end - start, start)
        return {name: _decoded(part) for name, part in msgspec.msgpack.decode(content).items()}

    def close(self) -> None:
        """Remove the file."""
        self._file.close()


def _encoded(part: Part) -> Any:
    if isinstance(part, np.ndarray):
        return part.dtype.str, part.shape, np.ascontiguousarray(part).tobytes()
    return part


def _decoded(part: Any) -> Part:
    if isinstance(part, list):
        dtype, shape, content = part
        return np.frombuffer(content, dtype).reshape(shape)
    decoded: Part = part
    return decoded
