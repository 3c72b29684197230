"""Samples kept in a temporary file, so that a source that can be read once is read in any order."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import tempfile
from array import array
from collections.abc import Mapping

import numpy as np

from phalanx.data.packing.npy_content import parse_npy
from phalanx.data.packing.record_origin import Part
from phalanx.errors import UserError


class SampleSpool:
    """Samples of the same parts, in a file in the folder for temporary files ($TMPDIR)."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `close`
        self._digest = hashlib.sha256()
        self._kinds: dict[str, type] = {}
        self._ends = array("q", [0])

    def __len__(self) -> int:
        return (len(self._ends) - 1) // max(1, len(self._kinds))

    @property
    def digest(self) -> str:
        """Hash of all samples."""
        return self._digest.hexdigest()[:16]

    def add(self, parts: Mapping[str, Part]) -> None:
        """Append a sample; all have the parts of the first, of the same kinds.

        Raises: UserError when the disk is full.
        """
        self._kinds = self._kinds or {name: type(part) for name, part in parts.items()}
        for name in self._kinds:
            content = _encoded(parts[name])
            self._digest.update(content)
            self._ends.append(self._ends[-1] + len(content))
            try:
                self._file.write(content)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                raise UserError(
                    f"{tempfile.gettempdir()} is full: samples are kept there until they are "
                    "packed; name a folder on another disk by TMPDIR=…"
                ) from error

    def read(self, number: int) -> dict[str, Part]:
        """Return a sample, by its number."""
        self._file.flush()
        first = number * len(self._kinds)
        parts: dict[str, Part] = {}
        for position, (name, kind) in enumerate(self._kinds.items(), first):
            start, end = self._ends[position], self._ends[position + 1]
            content = os.pread(self._file.fileno(), end - start, start)
            parts[name] = _decoded(content, kind)
        return parts

    def close(self) -> None:
        """Remove the file."""
        self._file.close()


def _encoded(part: Part) -> bytes:
    if isinstance(part, np.ndarray):
        file = io.BytesIO()
        np.lib.format.write_array(file, part, version=(1, 0), allow_pickle=False)
        return file.getvalue()
    return part if isinstance(part, bytes) else part.encode()


def _decoded(content: bytes, kind: type) -> Part:
    if kind is bytes:
        return content
    return content.decode() if kind is str else parse_npy(content)
