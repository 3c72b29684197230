"""Members of several tar files, read where they lie."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx.data.packing.npy_content import parse_npy
from phalanx.data.packing.origin import SkippedItems, reported
from phalanx.data.packing.tar_members import Member, read_samples
from phalanx.errors import UserError


class TarArchives:
    """Open tar files; nothing is unpacked to disk, nothing unpickled."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = list(paths)
        self._of_macos = SkippedItems("members ._…, attributes that macOS keeps")
        self._files = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in paths]

    def samples(self) -> list[dict[str, Member]]:
        """Return the members of every sample, by ending.

        Raises: UserError for a damaged archive or an unsafe member, or when there are none.
        """
        paths = enumerate(self._paths)
        samples = [sample for i, path in paths for sample in read_samples(i, path, self._of_macos)]
        if not samples:
            raise UserError(f"{self._paths[0]} holds no samples")
        return samples

    @property
    def skipped(self) -> list[SkippedItems]:
        """Members that belong to no sample, for the summary."""
        return reported([self._of_macos])

    def content(self, member: Member) -> bytes:
        """Return the bytes of a member. Raises: UserError when they are not all there."""
        content = os.pread(self._files[member.file], member.size, member.offset)
        if len(content) < member.size:
            raise UserError(f"{self.where(member)} is cut off: the archive is truncated")
        return content

    def array(self, member: Member) -> NDArray[Any]:
        """Return the numbers of a member `.npy`. Raises: UserError when it has none."""
        try:
            array = parse_npy(self.content(member))
        except ValueError as error:
            raise UserError(f"{self.where(member)} is no array: {error}") from error
        if array.dtype.kind not in "biuf":
            raise UserError(f"{self.where(member)} is no array of numbers, but of {array.dtype}")
        native = array.astype(array.dtype.newbyteorder("="), copy=False)
        return np.ascontiguousarray(native).reshape(array.shape)

    def where(self, member: Member) -> str:
        """Return the location of a member, for error messages."""
        return f"{self._paths[member.file]}: {member.name} at byte {member.offset}"

    def close(self) -> None:
        """Close all files."""
        while self._files:
            os.close(self._files.pop())
