"""Packed data, to be read at random: any sample of any shard, checked as it is read."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from phalanx.data.packed.blocks import Blocks
from phalanx.data.packed.damage import ALTERED_CHECKSUM, DamagedError, fault_of
from phalanx.data.packed.decode import decode_image
from phalanx.data.packed.file_sizes import check_files
from phalanx.data.packed.index import Field, PackIndex, Shard
from phalanx.data.packed.part_reader import Asked, PartReader
from phalanx.data.packed.shards import element, sample_bytes
from phalanx.data.packed.stored import read_index

Indices = NDArray[np.int64]


class Pack:
    """One split of a pack. Any thread may read; a forked or spawned process opens its own (a
    pickled Pack does)."""

    folder: Path
    index: PackIndex
    num_samples: int
    fields: dict[str, Field]
    shards: Sequence[Shard]
    first_samples: NDArray[np.int64]
    """(shards + 1,): the number of each shard's first sample, and `num_samples`."""

    def __init__(self, folder: Path, *, damaged: Literal["stop", "skip"] = "stop") -> None:
        """Reads the index; shards are opened when they are first read.

        Raises: UserError when there is no index, it is damaged, or a shard is missing; where
                damaged samples stop the run also when a file is not of the size that the index
                names (DamagedError where it is shorter).
        """
        self.folder = folder
        self.index = read_index(folder)
        self.num_samples = self.index.num_samples
        self.fields = {field.name: field for field in self.index.fields}
        self.shards = self.index.shards
        self._damaged = damaged
        self._lost: dict[int, DamagedError] = {}
        self._lock = threading.Lock()
        self._blocks = Blocks()
        self._places: dict[int, Path] = {}
        self._numbers = {field.name: i for i, field in enumerate(self.index.fields)}
        self._reader = PartReader(self.index, self._path, is_strict=damaged == "stop")
        self.first_samples = self._reader.first_samples
        check_files(self.index, self._path, self._reader, is_strict=damaged == "stop")

    @property
    def num_damaged(self) -> int:
        """Samples that were found altered so far, where these are skipped."""
        return len(self._lost)

    @property
    def damages(self) -> list[DamagedError]:
        """Where these samples are, in their order."""
        with self._lock:
            return [self._lost[sample] for sample in sorted(self._lost)]

    def damaged_of(self, indices: Indices) -> NDArray[np.bool_]:
        """(n,) which of these samples were found altered when they were read."""
        with self._lock:
            lost = set(self._lost)
        if not lost:
            return np.zeros(len(indices), bool)
        return np.fromiter((int(i) in lost for i in indices), bool, len(indices))

    def read(self, field: str, indices: Indices, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """(n, …) of a field whose shape is known, decoded; row i is that of sample indices[i].

        out: where to, contiguous; None makes an array. Cost: one copy of the bytes for a raw field.
        Raises: DamagedError (a UserError) naming shard, sample and offset when bytes are not those
                that were packed, or the shard ends before them; where damaged samples are skipped
                the rows are zeros and `damaged_of` names them.
        """
        described = self.fields[field]
        if described.shape is None:
            raise ValueError(f"the samples of {field!r} differ in shape: use read_each")
        shape, dtype = (len(indices), *described.shape), element(described)
        if out is None:
            out = self._blocks.empty(shape, dtype)
        elif out.shape != shape or out.dtype != dtype or not out.flags.c_contiguous:
            raise ValueError(f"out must be contiguous, {dtype} {shape}: {out.dtype} {out.shape}")
        if described.encoding == "raw":
            self._read_raw(field, indices, out)
            return out
        for row, array in enumerate(self._decoded(field, indices)):
            out[row] = 0 if array is None else array
        return out

    def read_each(self, field: str, indices: Indices) -> list[NDArray[Any]]:
        """An array a sample, of a field of any shape; an empty one where a damaged one is skipped.

        Raises: DamagedError as `read`.
        """
        described = self.fields[field]
        if described.encoding == "raw" and described.shape is not None:
            return list(self.read(field, indices))
        nothing = np.empty(0, element(described))
        return [nothing if a is None else a for a in self._decoded(field, indices)]

    def read_bytes(self, field: str, indices: Indices) -> list[bytes]:
        """The bytes as they were packed, of a field of any shape, not decoded; of a raw field whose
        samples differ, an `.npy` file each. Empty where a damaged sample is skipped.

        Raises: DamagedError as `read`.
        """
        asked = self._reader.locate(self._numbers[field], indices)
        places = np.cumsum(asked.parts.sizes) - asked.parts.sizes
        content = self._blocks.empty([int(asked.parts.sizes.sum())], np.dtype(np.uint8))
        lost = set(self._fetch(asked, places, content))
        spans = zip(places.tolist(), asked.parts.sizes.tolist(), strict=True)
        return [
            b"" if row in lost else content[place : place + size].tobytes()
            for row, (place, size) in enumerate(spans)
        ]

    def relocated(self, shard: int, folder: Path | None) -> None:
        """From now on read a shard's files from `folder` (staged there); None: from the pack.
        What is being read is read to its end from where it was."""
        if folder is None:
            self._places.pop(shard, None)
        else:
            self._places[shard] = folder
        self._reader.forget(shard)

    def close(self) -> None:
        """Files that are being read stay open until they are read."""
        self._reader.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened, (self.folder, self._damaged)

    def _read_raw(self, field: str, indices: Indices, out: NDArray[Any]) -> None:
        flat, number = out.reshape(-1).view(np.uint8), self._numbers[field]
        if self._reader.read_whole(number, indices, flat):
            return
        size = sample_bytes(self.fields[field]) or 0
        places = np.arange(len(out), dtype=np.int64) * size
        for row in self._fetch(self._reader.locate(number, indices), places, flat):
            out[row] = 0

    def _decoded(self, field: str, indices: Indices) -> Iterator[NDArray[Any] | None]:
        """Yield the decoded samples in order; None for a damaged one that is skipped."""
        described, asked = self.fields[field], self._reader.locate(self._numbers[field], indices)
        for row, content in enumerate(self.read_bytes(field, indices)):
            if not content:
                yield None
                continue
            try:
                yield _array_of(content, described)
            except ValueError as error:
                self._lose(asked, row, str(error))
                yield None

    def _fetch(self, asked: Asked, places: Indices, out: NDArray[np.uint8]) -> list[int]:
        """Bring every part to its place in `out`, (bytes,); the rows of damaged samples, where
        these are skipped."""
        outcomes = self._reader.fetch(asked, places, out)
        if not outcomes.any():
            return []
        lost: list[int] = np.flatnonzero(outcomes).tolist()
        for row in lost:
            self._lose(asked, row, fault_of(int(outcomes[row])))
        return lost

    def _lose(self, asked: Asked, row: int, fault: str) -> None:
        """Raises: DamagedError where damaged samples stop the run."""
        sample, shard = int(asked.samples[row]), int(asked.shards[row])
        file, offset = self._path(shard, asked.file), int(asked.parts.offsets[row])
        entry = self._reader.altered_entry(sample, shard)
        if entry is not None:
            fault, file, offset = ALTERED_CHECKSUM, self._path(shard, 0), entry
        error = DamagedError(fault, file=file, sample=sample, offset_bytes=offset)
        if self._damaged == "stop":
            raise error
        with self._lock:
            self._lost.setdefault(sample, error)

    def _path(self, shard: int, file: int) -> Path:
        folder = self._places.get(shard, self.folder)
        return folder / self.shards[shard].files[file].name


def _array_of(content: bytes, field: Field) -> NDArray[Any]:
    """Raises: ValueError when the bytes do not decode to what the field is."""
    if field.encoding == "raw":
        array: NDArray[Any] = np.load(io.BytesIO(content), allow_pickle=False)
        return array
    array = decode_image(content, field.shape[0] if field.shape else None)
    if field.shape is not None and list(array.shape) != field.shape:
        raise ValueError(f"is an image of {array.shape}, not {tuple(field.shape)}")
    return array


def _opened(folder: Path, damaged: Literal["stop", "skip"]) -> Pack:
    return Pack(folder, damaged=damaged)
