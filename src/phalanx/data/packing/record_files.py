"""Files of records that lie one after the other: JSON lines, TFRecord."""

from __future__ import annotations

import os
from abc import abstractmethod
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from phalanx.data.gzip_file import open_unzipped
from phalanx.data.packing.origin import OriginOptions, fingerprint_of
from phalanx.data.packing.record_origin import RecordOrigin
from phalanx.data.unpacked import TEXT_BYTES, unpacked_limit


class RecordPlace(NamedTuple):
    offset: int
    size: int
    """Bytes."""
    position: int
    """Number of the line or byte, for error messages."""


class RecordFiles(RecordOrigin):
    """Records of one file, or of several one after the other, gzipped or not; read where they lie.
    Where they lie is kept in memory, 32 bytes a record."""

    position_word = "at byte"

    def __init__(self, paths: Sequence[Path], options: OriginOptions) -> None:
        """Raises: UserError naming the record that is damaged, or does not fit those before."""
        super().__init__()
        self._paths, self._files = list(paths), list[IO[bytes]]()
        self._places = array("q")  # four numbers each: the file, and a RecordPlace
        self.text = str(paths[0] if len(paths) == 1 else paths[0].parent)
        self.fingerprint = fingerprint_of(paths)
        try:
            for number, path in enumerate(paths):
                limit = unpacked_limit(path.stat().st_size, TEXT_BYTES)
                self._files.append(open_unzipped(path, limit_bytes=limit))
                for place in self.find(path, self._files[number]):
                    self._places.extend((number, *place))
            self._scan(len(self._places) // 4, options)
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def find(self, path: Path, file: IO[bytes]) -> Iterator[RecordPlace]:
        """Yield the location of every record of a file."""

    @abstractmethod
    def parse(self, content: bytes, where: str) -> Mapping[str, Any]:
        """Return the parts of a record. Raises: UserError that begins with `where`."""

    def record(self, number: int) -> Mapping[str, Any]:
        file, offset, size, _ = self._places[4 * number : 4 * number + 4]
        content = os.pread(self._files[file].fileno(), size, offset)
        return self.parse(content, self.where(number))

    def where(self, number: int) -> str:
        file, position = self._places[4 * number], self._places[4 * number + 3]
        return f"{self._paths[file]} {self.position_word} {position}"

    def close(self) -> None:
        while self._files:
            self._files.pop().close()
