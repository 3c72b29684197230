"""Random access to packed data: any sample of any shard, verified as it is read."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from phalanx.data.packed.buffer_pool import BufferPool
from phalanx.data.packed.checked_reads import describe_outcome
from phalanx.data.packed.decode import decode_image
from phalanx.data.packed.index import Field, element, sample_bytes
from phalanx.data.packed.index_file import read_index
from phalanx.data.packed.part_reader import DamagedError, Indices, LocatedParts, PartReader


class Pack:
    """One split of packed data, read at random. Thread-safe; a forked or spawned process opens its
    own files, as a pickled Pack does.

    The index is read at once, shards are opened at the first read.

    Example::

        pack = phalanx.Pack(Path("digits.pack/train"))
        images = pack.read("inputs", np.arange(8))  # (8, …), in the dtype of the field
        pack.close()

    Args:
        folder: Folder of the split, with its `index.json`.
        damaged: What happens at a corrupt sample: `stop` raises, `skip` reads zeros and counts it.

    Raises:
        UserError: If there is no index, it is damaged, or a shard is missing; with `stop` also if a
            file is not of the size that the index names.
        DamagedError: With `stop`, if a file is shorter than the index says.
    """

    def __init__(self, folder: Path, damaged: Literal["stop", "skip"] = "stop") -> None:
        self.folder = folder
        """Folder of the split."""
        self.index = read_index(folder)
        """The index, as `index.json` has it."""
        self.num_samples = self.index.num_samples
        """Number of samples of the split."""
        self.fields = {field.name: field for field in self.index.fields}
        """Fields of every sample, by name."""
        self.shards = self.index.shards
        self._damaged = damaged
        self._damages: dict[int, DamagedError] = {}
        self._lock = threading.Lock()
        self._buffers = BufferPool()
        self._staged: Path | None = None
        self._numbers = {field.name: i for i, field in enumerate(self.index.fields)}
        self._reader = PartReader(self.index, self._path, is_strict=damaged == "stop")
        self.first_samples: NDArray[np.int64] = self._reader.first_samples
        """(shards + 1,): the number of each shard's first sample, and `num_samples`."""
        self._reader.check_files()

    @property
    def damages(self) -> list[DamagedError]:
        """Damaged samples found so far, in the order of their indices."""
        with self._lock:
            return [self._damages[sample] for sample in sorted(self._damages)]

    def damaged_of(self, indices: Indices) -> NDArray[np.bool_]:
        """Return which samples were found damaged when they were read.

        Args:
            indices: (n,) int64, indices of samples.

        Returns:
            (n,) bool.
        """
        with self._lock:
            lost = set(self._damages)
        if not lost:
            return np.zeros(len(indices), bool)
        return np.fromiter((int(i) in lost for i in indices), bool, len(indices))

    def read(self, field: str, indices: Indices, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return a field of fixed shape, decoded. Cost: one copy of the bytes for a raw field.

        Args:
            field: Name of the field.
            indices: (n,) int64, indices of samples.
            out: Contiguous array to fill, of the result's shape and dtype. None: a new one.

        Returns:
            (n, …); row i is sample `indices[i]`. Rows of damaged samples that are skipped are
            zeros, and `damaged_of` names them.

        Raises:
            DamagedError: If the bytes are not those that were packed, or the shard ends before
                them; it names shard, sample and offset.
            ValueError: For a field whose samples differ in shape, and for an `out` that does not
                fit.
        """
        described = self.fields[field]
        if described.shape is None:
            raise ValueError(f"the samples of {field!r} differ in shape: use read_each")
        shape, dtype = (len(indices), *described.shape), element(described)
        if out is None:
            out = self._buffers.empty(shape, dtype)
        elif out.shape != shape or out.dtype != dtype or not out.flags.c_contiguous:
            raise ValueError(f"out must be contiguous, {dtype} {shape}: {out.dtype} {out.shape}")
        if described.encoding == "raw":
            self._read_raw(field, indices, out)
            return out
        for row, array in enumerate(self._decoded(field, indices)):
            out[row] = 0 if array is None else array
        return out

    def read_each(self, field: str, indices: Indices) -> list[NDArray[Any]]:
        """Return a field of any shape, decoded.

        Args:
            field: Name of the field.
            indices: (n,) int64, indices of samples.

        Returns:
            n arrays; an empty one for a damaged sample that is skipped.

        Raises:
            DamagedError: As `read`.
        """
        described = self.fields[field]
        if described.encoding == "raw" and described.shape is not None:
            return list(self.read(field, indices))
        nothing = np.empty(0, element(described))
        return [nothing if a is None else a for a in self._decoded(field, indices)]

    def read_bytes(self, field: str, indices: Indices) -> list[bytes]:
        """Return the packed bytes of a field of any shape, not decoded.

        Args:
            field: Name of the field.
            indices: (n,) int64, indices of samples.

        Returns:
            n byte strings: files of images, of a raw field of varying shape files of NumPy's
            `.npy`. An empty one for a damaged sample that is skipped.

        Raises:
            DamagedError: As `read`.
        """
        located = self._reader.locate(self._numbers[field], indices)
        destinations = np.cumsum(located.sizes) - located.sizes
        content = self._buffers.empty([int(located.sizes.sum())], np.dtype(np.uint8))
        lost = set(self._fetch(located, destinations, content))
        spans = zip(destinations.tolist(), located.sizes.tolist(), strict=True)
        return [
            b"" if row in lost else content[place : place + size].tobytes()
            for row, (place, size) in enumerate(spans)
        ]

    def read_from(self, staged: Path | None) -> None:
        """Open files again at their next use, from another folder where they are there then. Reads
        in flight finish on the old files.

        Args:
            staged: Folder of copies; files that it lacks are read from the pack. None: the pack
                alone.
        """
        self._staged = staged
        self._reader.close()

    def close(self) -> None:
        """Close all files; reads in flight finish first."""
        self._reader.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return Pack, (self.folder, self._damaged)

    def _read_raw(self, field: str, indices: Indices, out: NDArray[Any]) -> None:
        flat, number = out.reshape(-1).view(np.uint8), self._numbers[field]
        if self._reader.read_fast(number, indices, flat):
            return
        size = sample_bytes(self.fields[field]) or 0
        destinations = np.arange(len(out), dtype=np.int64) * size
        for row in self._fetch(self._reader.locate(number, indices), destinations, flat):
            out[row] = 0

    def _decoded(self, field: str, indices: Indices) -> Iterator[NDArray[Any] | None]:
        """Yield the decoded samples in order; None for a damaged one that is skipped."""
        described, located = self.fields[field], self._reader.locate(self._numbers[field], indices)
        for row, content in enumerate(self.read_bytes(field, indices)):
            if not content:
                yield None
                continue
            try:
                yield _array_of(content, described)
            except ValueError as error:
                self._record_damage(located, row, str(error))
                yield None

    def _fetch(
        self, located: LocatedParts, destinations: Indices, out: NDArray[np.uint8]
    ) -> list[int]:
        """Read every part to its offset in `out`, (bytes,); return the rows of damaged samples that
        are skipped."""
        outcomes = self._reader.fetch(located, destinations, out)
        if not outcomes.any():
            return []
        lost: list[int] = np.flatnonzero(outcomes).tolist()
        for row in lost:
            self._record_damage(located, row, describe_outcome(int(outcomes[row])))
        return lost

    def _record_damage(self, located: LocatedParts, row: int, fault: str) -> None:
        """Raises: DamagedError where damaged samples stop the run."""
        sample, shard = int(located.samples[row]), int(located.shards[row])
        file, offset = self._path(shard, located.file), int(located.offsets[row])
        error = DamagedError(fault, file=file, sample=sample, offset_bytes=offset)
        if self._damaged == "stop":
            raise error
        with self._lock:
            self._damages.setdefault(sample, error)

    def _path(self, shard: int, file: int) -> Path:
        name, staged = self.shards[shard].files[file].name, self._staged
        return staged / name if staged and (staged / name).exists() else self.folder / name


def _array_of(content: bytes, field: Field) -> NDArray[Any]:
    """Raises: ValueError when the bytes do not decode to what the field is."""
    if field.encoding == "raw":
        array: NDArray[Any] = np.load(io.BytesIO(content), allow_pickle=False)
        return array
    array = decode_image(content, field.shape[0] if field.shape else None)
    if field.shape is not None and list(array.shape) != field.shape:
        raise ValueError(f"is an image of {array.shape}, not {tuple(field.shape)}")
    return array
