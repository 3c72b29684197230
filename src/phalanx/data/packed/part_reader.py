"""Reader of parts: a part is one field of one sample, at some offset in a shard's files."""

from __future__ import annotations

import hashlib
import mmap
import threading
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from phalanx.data.packed.checked_reads import SpanBatch, compiled, read_spans
from phalanx.data.packed.index import PackIndex, sample_bytes, table_dtype
from phalanx.errors import UserError
from phalanx.records.regular_file import open_regular, read_regular, readable

Indices = NDArray[np.int64]

SAMPLES_AT_ONCE = 128
"""Samples per read where there are more shards than that, which bounds a reader's open files."""

OPEN_FILES = 256
"""Approximate limit over all readers of a pack; a mapped file takes two descriptors."""

MAPPED_BYTES = 64 * 2**20
"""Bytes of a pack that are memory-mapped: all of a small pack, the targets of many a large one.
Mapped pages count towards the process's memory, so larger packs are read with system calls, which
cost half a microsecond a sample."""

NOWHERE = 1 << 62
"""An offset beyond every file, for parts whose table entry is invalid."""


WHAT_TO_DO = "pack it again, or skip such samples with --damaged skip"


class DamagedError(UserError):
    """A sample that was altered since it was packed, or cut off; `file` and `offset_bytes` say
    where it should have been, `sample` is its number in the pack."""

    def __init__(self, fault: str, *, file: Path, sample: int, offset_bytes: int) -> None:
        super().__init__(
            f"{file} is damaged: sample {sample} at byte {offset_bytes} {fault}\n{WHAT_TO_DO}"
        )
        self.fault, self.file, self.sample, self.offset_bytes = fault, file, sample, offset_bytes

    def __reduce__(self) -> tuple[object, ...]:
        """Support pickling: reader processes send it to their parent."""
        again = partial(
            DamagedError, file=self.file, sample=self.sample, offset_bytes=self.offset_bytes
        )
        return again, (self.fault,)


class LocatedParts(NamedTuple):
    """One field of some samples, (n,) each, and its location."""

    file: int
    """Number of the file in each shard."""
    samples: Indices
    shards: Indices
    offsets: Indices
    sizes: Indices
    crcs: NDArray[np.uint32]


FileKey = tuple[int, int]
"""(shard, number of the file)"""


class OpenFile:
    """A file that is open, and mapped if wanted, as long as this object lives."""

    def __init__(self, path: Path, *, is_mapped: bool) -> None:
        self._file = open_regular(path).detach()
        descriptor = self._file.fileno()
        self._map = _mapped(descriptor) if is_mapped else np.empty(0, np.uint8)
        address = self._map.ctypes.data if self._map.size else 0
        self.numbers = descriptor, address, self._map.size
        """Descriptor, address of the mapping (0: not mapped), bytes mapped."""

    def __del__(self) -> None:
        with suppress(AttributeError):  # it could not be opened
            self._file.close()


class OpenShards(NamedTuple):
    """The file of one number in all shards that are open; they stay open as long as this object."""

    files: list[OpenFile]
    numbers: NDArray[np.int64]
    """(shards, 3): descriptor, address of the mapping, bytes mapped; -1: not open."""


class OpenFiles:
    """Keeps at most `limit` files open, and besides those that somebody refers to. Thread-safe."""

    def __init__(
        self, path_of: Callable[[int, int], Path], mapped: Container[FileKey], *, limit: int
    ) -> None:
        """mapped: the files that are memory-mapped."""
        self._path_of, self._mapped, self._limit = path_of, mapped, limit
        self._lock = threading.Lock()
        self._files: OrderedDict[FileKey, OpenFile] = OrderedDict()
        self._shards: dict[int, OpenShards] = {}

    def get(self, keys: Iterable[FileKey]) -> list[OpenFile]:
        """Return these files; each stays open as long as the caller refers to it.

        Raises: OSError when one cannot be opened.
        """
        with self._lock:
            files = [self._get(key) for key in keys]
            while len(self._files) > self._limit:
                (_, number), _ = self._files.popitem(last=False)
                self._shards.pop(number, None)
            return files

    def open_shards(self, number: int, num_shards: int) -> OpenShards:
        """Return what is open of the files of one number, for reading without further look-ups."""
        found = self._shards.get(number)
        if found is None:
            with self._lock:
                files = {shard: file for (shard, n), file in self._files.items() if n == number}
                table = np.full((num_shards, 3), -1, np.int64)
                table[[*files]] = np.array([file.numbers for file in files.values()]).reshape(-1, 3)
                found = self._shards[number] = OpenShards([*files.values()], table)
        return found

    def close(self) -> None:
        """Close all files; a file in use is closed after its last user, and the next use opens it
        again at `path_of`."""
        with self._lock:
            self._files.clear()
            self._shards.clear()

    def _get(self, key: FileKey) -> OpenFile:
        file = self._files.get(key)
        if file is None:
            self._shards.pop(key[1], None)
            file = self._files[key] = OpenFile(self._path_of(*key), is_mapped=key in self._mapped)
        self._files.move_to_end(key)
        return file


def _mapped(descriptor: int) -> NDArray[np.uint8]:
    """Map a file; empty where the system refuses, and the file is read instead."""
    try:
        return np.frombuffer(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ), np.uint8)
    except (OSError, ValueError):
        return np.empty(0, np.uint8)


class PartReader:
    """Reader of one pack's files. Thread-safe.

    Memory: 4 bytes a part, and 8 more where samples differ in size, of the shards used so far.
    """

    def __init__(
        self, index: PackIndex, path_of: Callable[[int, int], Path], *, is_strict: bool
    ) -> None:
        """path_of: (shard, number of the file) → its path. is_strict: damage ends the reading."""
        self._index, self._path_of, self._is_strict = index, path_of, is_strict
        self._files = OpenFiles(path_of, mapped_files(index, MAPPED_BYTES), limit=OPEN_FILES)
        self._stay_open = len(index.shards) * len(index.fields) <= OPEN_FILES // 2
        self._sizes = [sample_bytes(field) for field in index.fields]
        counts = [shard.num_samples for shard in index.shards]
        self.first_samples = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._file_bytes = np.array(
            [[file.bytes for file in shard.files[1:]] for shard in index.shards], np.int64
        ).T
        sizes = [size or 0 for size in self._sizes]
        self._headers = np.ascontiguousarray(self._file_bytes - np.outer(sizes, counts))
        """Bytes before the first sample, of each field and shard."""
        # Untouched pages cost nothing.
        self._rows = np.zeros(index.num_samples, table_dtype(index.fields))
        """Tables of the shards, each read at its first use."""
        self._is_read = np.zeros(len(index.shards), bool)
        self._lock = threading.Lock()

    def locate(self, field: int, indices: Indices) -> LocatedParts:
        """Return the location of a field of these samples.

        Raises: IndexError for a sample that does not exist; UserError when a shard's table is
                missing or not as it was packed.
        """
        samples = np.ascontiguousarray(indices, np.int64)
        num_samples = self._index.num_samples
        if samples.size and not 0 <= samples.min() <= samples.max() < num_samples:
            wrong = samples[(samples < 0) | (samples >= num_samples)][0]
            raise IndexError(f"there is no sample {wrong}: the pack has {num_samples}")
        shards = np.searchsorted(self.first_samples, samples, side="right") - 1
        if not self._is_read[shards].all():
            for shard in np.unique(shards[~self._is_read[shards]]).tolist():
                self._read_table(shard)
        size, name = self._sizes[field], self._index.fields[field].name
        crcs, rows = self._rows[f"{name}.crc"][samples], samples - self.first_samples[shards]
        if size is not None:
            offsets = self._headers[field, shards] + rows * size
            sizes = np.full(len(samples), size, np.int64)
            return LocatedParts(1 + field, samples, shards, offsets, sizes, crcs)
        ends = self._rows[f"{name}.end"]
        starts = np.where(rows > 0, ends[samples - 1], 0)
        sizes = ends[samples] - starts
        makes_sense = (starts >= 0) & (sizes > 0) & (sizes <= self._file_bytes[field, shards])
        offsets, sizes = np.where(makes_sense, starts, NOWHERE), np.where(makes_sense, sizes, 1)
        return LocatedParts(1 + field, samples, shards, offsets, sizes, crcs)

    def check_files(self) -> None:
        """Check that all files exist, and where the reader is strict that they have their sizes.

        Raises: UserError for a missing file or one of another size; DamagedError, naming the first
                sample cut off, where it is shorter.
        """
        for shard, described in enumerate(self._index.shards):
            for number, file in enumerate(described.files):
                path = self._path_of(shard, number)
                with readable(path):
                    found = path.stat().st_size
                if found == file.bytes or not self._is_strict:
                    continue
                if found < file.bytes and number > 0:
                    raise self._cut_off(path, shard, number, found)
                raise UserError(
                    f"{path} is damaged: it has {found} bytes, not {file.bytes}\n{WHAT_TO_DO}"
                )

    def _cut_off(self, path: Path, shard: int, number: int, found: int) -> DamagedError:
        samples = np.arange(self.first_samples[shard], self.first_samples[shard + 1])
        parts = self.locate(number - 1, samples)
        first = int(np.argmax(parts.offsets + parts.sizes > found))
        return DamagedError(
            f"lies beyond its end: it has {found} bytes, not "
            f"{self._index.shards[shard].files[number].bytes}",
            file=path,
            sample=int(samples[first]),
            offset_bytes=int(parts.offsets[first]),
        )

    def read_fast(self, field: int, indices: Indices, out: NDArray[np.uint8]) -> bool:
        """Try to read all samples into `out`, (bytes,), in one call to C (csrc/rows.c); True when
        all are there and intact. On False, `locate` and `fetch` find out why; nothing may be wrong.

        For samples of equal size in files that stay open: locating samples and looking up open
        files takes a few dozen operations on small arrays, which for batches of small samples is
        most of the time.
        """
        module, size, index = compiled(), self._sizes[field], self._index
        if module is None or not size or not self._stay_open:
            return False
        opened = self._files.open_shards(1 + field, len(index.shards))
        dtype = self._rows.dtype
        assert dtype.fields is not None, "a checksum for each field"
        return bool(
            module.read_samples(
                self.first_samples,
                opened.numbers,
                self._headers[field],
                self._rows.view(np.uint8),
                dtype.itemsize,
                dtype.fields[f"{index.fields[field].name}.crc"][1],
                size,
                np.ascontiguousarray(indices, np.int64),
                out,
            )
        )

    def fetch(
        self, located: LocatedParts, destinations: Indices, out: NDArray[np.uint8]
    ) -> NDArray[np.int32]:
        """Read every part to its offset in `out`, (bytes,); return outcomes as in checked_reads.py.

        Raises: UserError when a file cannot be opened.
        """
        num_parts = len(located.samples)
        are_many = len(self._index.shards) > SAMPLES_AT_ONCE
        step = SAMPLES_AT_ONCE if are_many else max(1, num_parts)
        outcomes = [
            self._fetch(located, slice(start, start + step), destinations, out)
            for start in range(0, num_parts, step)
        ]
        return np.concatenate([np.empty(0, np.int32), *outcomes])

    def close(self) -> None:
        """Close all files; reads in flight finish first, and the next read opens them again at
        `path_of`."""
        self._files.close()

    def _fetch(
        self, located: LocatedParts, rows: slice, destinations: Indices, out: NDArray[np.uint8]
    ) -> NDArray[np.int32]:
        shards = located.shards[rows]
        present = np.flatnonzero(np.bincount(shards))
        with readable():
            opened = self._files.get((shard, located.file) for shard in present.tolist())
        numbers = np.array([file.numbers for file in opened], np.int64)
        by_row = numbers[np.searchsorted(present, shards)]
        files, maps, map_bytes = np.ascontiguousarray(by_row.T)
        spans = SpanBatch(
            files.astype(np.int32),
            maps,
            map_bytes,
            located.offsets[rows],
            located.sizes[rows],
            destinations[rows],
            located.crcs[rows],
        )
        return read_spans(spans, out)

    def _read_table(self, number: int) -> None:
        with self._lock:
            if self._is_read[number]:
                return
            shard, path = self._index.shards[number], self._path_of(number, 0)
            with readable(path):
                content = read_regular(path)
            rows = self._rows[self.first_samples[number] : self.first_samples[number + 1]]
            if (
                len(content) < rows.nbytes
                or hashlib.sha256(content).hexdigest() != shard.files[0].sha256
            ):
                raise UserError(
                    f"{path}, the checksums of {shard.num_samples} samples, changed since packing\n"
                    "pack it again"
                )
            rows[:] = np.frombuffer(content[len(content) - rows.nbytes :], rows.dtype)
            self._is_read[number] = True


def mapped_files(index: PackIndex, budget_bytes: int) -> frozenset[FileKey]:
    """Return (shard, number of the file) of the smallest files that together fit the budget."""
    files = sorted(
        (file.bytes, shard, number)
        for shard, described in enumerate(index.shards)
        for number, file in enumerate(described.files)
        if number > 0  # the table of checksums is read at once
    )
    total = np.cumsum([size for size, _, _ in files])
    num_mapped = int(np.searchsorted(total, budget_bytes, side="right"))
    return frozenset((shard, number) for _, shard, number in files[:num_mapped])
