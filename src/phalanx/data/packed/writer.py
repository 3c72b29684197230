"""Atomic, resumable writer of packs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from phalanx.data.packed.field_statistics import measure_fields
from phalanx.data.packed.hidden_folder import HiddenFolder, hidden_folder, writing
from phalanx.data.packed.index import INDEX, Field, PackIndex, Shard, sample_bytes
from phalanx.data.packed.index_file import check_fields, encode_index, read_index
from phalanx.data.packed.shard_writers import Part, Rows, ShardWriter
from phalanx.errors import UserError
from phalanx.records.files import DECODE_ERRORS, write_atomically
from phalanx.records.regular_file import FileName

PROGRESS = ".progress.jsonl"


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """Two packs with the same arguments, of the same data, are the same bytes."""

    fields: list[Field]
    shard_bytes: int
    source: str
    classes: list[str]
    splits: dict[FileName, int] = {}


class PackWriter:
    """Writer of one split of packed data, atomic and resumable.

    Samples go to shards in a hidden folder beside `folder`, which takes that name at the end. As a
    context manager it calls `finish`, unless there was an error; complete shards are then kept. A
    writer with the same arguments resumes after them: `num_samples` is the number of samples that
    are written, and the caller goes on with the next. The same samples and arguments give the same
    bytes.

    Example::

        fields = [Field(name="inputs", dtype="float32", shape=(3,))]
        with phalanx.PackWriter(Path("new.pack"), fields=fields) as writer:
            for row in rows:
                writer.add({"inputs": row})

    Args:
        folder: Folder of the split to write.
        fields: Parts of every sample, such as `inputs` and `targets`.
        shard_bytes: Approximate size of a shard, in bytes.
        source: Where the samples come from, for people.
        classes: Names of the targets, where these are classes.
        measure: Names of fields whose mean and deviation are written to the index.
        splits: Number of samples of each split of the pack. None: this one is alone.

    Raises:
        UserError: If the pack exists, another process is writing it, an interrupted writer had
            other arguments, or the disk is full or not writable. Existing data stay.
    """

    num_samples: int
    """Number of samples that are written."""

    def __init__(
        self,
        folder: Path,
        *,
        fields: Sequence[Field],
        shard_bytes: int = 256 * 2**20,
        source: str = "",
        classes: Sequence[str] = (),
        measure: Sequence[str] = (),
        splits: Mapping[str, int] | None = None,
    ) -> None:
        check_fields(fields)
        self._arguments = Arguments(
            fields=list(fields),
            shard_bytes=shard_bytes,
            source=source,
            classes=list(classes),
            splits=dict(splits or {}),
        )
        self._measure = frozenset(measure)
        self._folder = folder
        self._shard: ShardWriter | None = None
        self._shards: list[Shard] = []
        self._hidden: HiddenFolder[Arguments] | None = None
        self._path = hidden_folder(folder)
        with self._closing_on_error():
            self._hidden = HiddenFolder(folder, self._arguments, source=source)
            self._shards = _whole_shards(self._path)
            lines = [msgspec.json.encode(shard) + b"\n" for shard in self._shards]
            write_atomically(self._path / PROGRESS, b"".join(lines))  # no truncated last line
        self.num_samples = sum(shard.num_samples for shard in self._shards)

    def add(self, sample: Mapping[str, Part]) -> None:
        """Add a sample.

        Args:
            sample: By field, an array of its dtype and shape, or the encoded bytes.

        Raises:
            ValueError: If the sample is not what the fields say.
        """
        self.add_rows(
            {n: [p] if isinstance(p, bytes) else np.asarray(p)[None] for n, p in sample.items()}
        )

    def add_rows(self, rows: Rows) -> None:
        """Add many samples at once.

        Args:
            rows: By field, (n, …), or a list of n arrays where they differ in size.

        Raises:
            ValueError: If the rows are not what the fields say.
        """
        num_rows = check_rows(self._arguments.fields, rows)
        start = 0
        with self._closing_on_error():
            while start < num_rows:
                if self._shard is None:
                    number, most = len(self._shards), self._arguments.shard_bytes
                    self._shard = ShardWriter(
                        self._path, self._arguments.fields, number=number, shard_bytes=most
                    )
                taken = self._shard.add_rows({name: part[start:] for name, part in rows.items()})
                start += taken
                self.num_samples += taken
                if start < num_rows:
                    self._close_shard()

    def finish(self) -> PackIndex:
        """Close the last shard, write the index, and give the folder its name.

        Returns:
            The index, as it was written.
        """
        with self._closing_on_error():
            self._close_shard()
            if not self._shards:
                raise UserError(f"there are no samples to pack into {self._folder}")
            index = PackIndex(
                fields=self._arguments.fields,
                shards=self._shards,
                num_samples=self.num_samples,
                classes=self._arguments.classes,
                source=self._arguments.source,
                splits=self._arguments.splits,
            )
            path = self._path / INDEX
            write_atomically(path, encode_index(index))
            if self._measure:
                index = msgspec.structs.replace(
                    index, fields=measure_fields(self._path, self._measure)
                )
                write_atomically(path, encode_index(index))
            (self._path / PROGRESS).unlink()
            assert self._hidden is not None, "it is open"
            self._hidden.publish()
            self._abandon()
            return read_index(self._folder)

    def __enter__(self) -> PackWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.finish()
        else:
            self._abandon()

    def _close_shard(self) -> None:
        if self._shard is not None:
            shard = self._shard.finish()
            self._shard = None
            with (self._path / PROGRESS).open("ab") as file:  # files of the shard are on the disk
                file.write(msgspec.json.encode(shard) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            self._shards.append(shard)

    def _abandon(self) -> None:
        """Drop the unfinished shard and the lock."""
        if self._shard is not None:
            self._shard.abandon()
            self._shard = None
        if self._hidden is not None:
            self._hidden.close()
            self._hidden = None

    @contextmanager
    def _closing_on_error(self) -> Iterator[None]:
        """Close the writer after any error. Raises: UserError for an OSError."""
        kept = sum(shard.num_samples for shard in self._shards)
        try:
            with writing(self._folder, f"; {kept:,} samples are saved in {self._path}"):
                yield
        except BaseException:
            self._abandon()
            raise


def _whole_shards(folder: Path) -> list[Shard]:
    """Return the shards of an interrupted writer, before the first one whose files are not all
    there; a truncated last line is ignored."""
    try:
        lines = (folder / PROGRESS).read_bytes().split(b"\n")[:-1]
        shards = [msgspec.json.decode(line, type=Shard) for line in lines]
    except (FileNotFoundError, *DECODE_ERRORS):
        return []
    return list(
        takewhile(
            lambda shard: all(
                (folder / file.name).is_file() and (folder / file.name).stat().st_size == file.bytes
                for file in shard.files
            ),
            shards,
        )
    )


def check_rows(fields: Sequence[Field], rows: Rows) -> int:
    """Return the number of rows.

    Raises: ValueError, naming the field, what was expected and what came.
    """
    expected = {field.name for field in fields}
    if set(rows) != expected:
        raise ValueError(f"a sample has the fields {sorted(expected)}, not {sorted(rows)}")
    counts = {name: len(part) for name, part in rows.items()}
    if len(set(counts.values())) != 1:
        raise ValueError(f"fields have different numbers of rows: {counts}")
    for field in fields:
        parts = rows[field.name]
        if isinstance(parts, np.ndarray) and sample_bytes(field) is not None:
            _check_part(field, parts, parts.shape[1:])  # all alike
        else:
            for part in parts:
                _check_part(field, part, np.shape(part))
    return next(iter(counts.values()))


def _check_part(field: Field, array: NDArray[Any] | bytes, shape: tuple[int, ...]) -> None:
    """shape: of a sample."""
    if isinstance(array, bytes):
        if field.encoding == "raw" or not array:
            raise ValueError(f"{field.name!r} takes an array of {field.dtype}, not bytes")
        return
    if field.encoding != "raw":
        raise ValueError(f"{field.name!r} takes the bytes of a {field.encoding}, not an array")
    expected = "any shape" if field.shape is None else tuple(field.shape)
    if array.dtype != np.dtype(field.dtype) or (field.shape is not None and shape != expected):
        raise ValueError(
            f"{field.name!r} takes {field.dtype} of {expected}, not {array.dtype} of {shape}"
        )
