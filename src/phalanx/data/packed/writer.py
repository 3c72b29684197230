"""Atomic, resumable writer of packs."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from phalanx.data.file_lock import try_lock
from phalanx.data.packed.check_index import check_fields, check_rows, check_sample
from phalanx.data.packed.field_statistics import measure_fields
from phalanx.data.packed.index import INDEX, Field, PackIndex, Shard
from phalanx.data.packed.index_file import encode_index, read_index
from phalanx.data.packed.shard_writers import Rows, Sample, ShardWriter
from phalanx.errors import UserError
from phalanx.records.files import DECODE_ERRORS, write_atomically
from phalanx.records.regular_file import open_lock

PROGRESS = ".progress.jsonl"


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """Two packs with the same arguments, of the same data, are the same bytes."""

    fields: list[Field]
    shard_bytes: int
    source: str
    classes: list[str]


def read_progress(folder: Path) -> tuple[Arguments, list[Shard]] | None:
    """Return arguments and complete shards, or None; ignore a truncated last line."""
    try:
        lines = (folder / PROGRESS).read_bytes().split(b"\n")[:-1]
        if not lines:
            return None
        arguments = msgspec.json.decode(lines[0], type=Arguments)
        return arguments, [msgspec.json.decode(line, type=Shard) for line in lines[1:]]
    except (FileNotFoundError, *DECODE_ERRORS):
        return None


def rewrite_progress(folder: Path, arguments: Arguments, shards: Sequence[Shard]) -> None:
    """Write the file again, without a truncated last line."""
    lines = [msgspec.json.encode(line) for line in (arguments, *shards)]
    write_atomically(folder / PROGRESS, b"\n".join([*lines, b""]))


def add_progress(folder: Path, shard: Shard) -> None:
    """Append and fsync the line of a shard whose files are already on disk."""
    with (folder / PROGRESS).open("ab") as file:
        file.write(msgspec.json.encode(shard) + b"\n")
        file.flush()
        os.fsync(file.fileno())


Result = TypeVar("Result")

LOCK = ".lock"


class PackWriter:
    """Appends samples to shards of about `shard_bytes`, in a hidden folder beside `folder` that is
    renamed to it at the end. After an interrupted `PackWriter` with the same arguments,
    `num_samples` is the number of samples already written: the caller resumes with the next one.

    The same samples and arguments give the same bytes. Use it as a context manager: without an
    error it calls `finish`; after one, complete shards are kept to resume from.

        fields = [Field(name="inputs", dtype="float32", shape=(3,))]
        with phalanx.PackWriter(Path("new.pack"), fields=fields) as writer:
            for row in rows:
                writer.add({"inputs": row})

    Raises: UserError when the pack exists, another process is writing it, an interrupted writer
            had other arguments, or the disk is full or not writable; existing data stays.
    """

    num_samples: int

    def __init__(
        self,
        folder: Path,
        *,
        fields: Sequence[Field],
        shard_bytes: int = 256 * 2**20,
        source: str = "",
        classes: Sequence[str] = (),
        measure: Sequence[str] = (),
    ) -> None:
        """measure: fields whose mean and deviation are written to the index."""
        check_fields(fields)
        self._arguments = Arguments(
            fields=list(fields),
            shard_bytes=shard_bytes,
            source=source,
            classes=list(classes),
        )
        self._measure = frozenset(measure)
        self._folder = folder
        self._hidden = hidden_folder(folder)
        self._shard: ShardWriter | None = None
        self._shards: list[Shard] = []
        self._lock: IO[bytes] | None = None
        self._guard(self._go_on)
        self.num_samples = sum(shard.num_samples for shard in self._shards)

    def add(self, sample: Sample) -> None:
        """Add a sample: by field, an array of its dtype and shape, or the encoded bytes.

        Raises: ValueError when the sample is not what the fields say.
        """
        check_sample(self._arguments.fields, sample)
        self._guard(partial(self._add, sample))

    def add_rows(self, rows: Rows) -> None:
        """Add many samples of raw fields at once, (n, …) each.

        Raises: ValueError when the rows are not what the fields say.
        """
        num_rows = check_rows(self._arguments.fields, rows)
        start = 0
        while start < num_rows:
            rest = {name: part[start:] for name, part in rows.items()}
            start += self._guard(partial(self._add_some, rest))

    def finish(self) -> PackIndex:
        """Close the last shard, write the index, and rename the hidden folder."""
        return self._guard(self._publish)

    def __enter__(self) -> PackWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.finish()
        else:
            self._abandon()

    def _go_on(self) -> None:
        self._lock = _take(self._folder, self._hidden)
        begun = read_progress(self._hidden)
        if begun is None:
            begun = self._arguments, []
        arguments, shards = begun
        if arguments != self._arguments:
            raise UserError(
                f"{self._hidden} holds part of a pack of {arguments.source or 'other data'}, or "
                "with other options\ndo the same as then to go on, or remove that folder"
            )
        self._shards = _whole(self._hidden, shards)
        rewrite_progress(self._hidden, self._arguments, self._shards)

    def _add(self, sample: Sample) -> None:
        while not self._open_shard().add(sample):
            self._close_shard()
        self.num_samples += 1

    def _add_some(self, rows: Rows) -> int:
        taken = self._open_shard().add_rows(rows)
        self.num_samples += taken
        if taken < len(next(iter(rows.values()))):
            self._close_shard()
        return taken

    def _open_shard(self) -> ShardWriter:
        if self._shard is None:
            self._shard = ShardWriter(
                self._hidden,
                self._arguments.fields,
                number=len(self._shards),
                shard_bytes=self._arguments.shard_bytes,
            )
        return self._shard

    def _close_shard(self) -> None:
        if self._shard is not None:
            shard = self._shard.finish()
            self._shard = None
            add_progress(self._hidden, shard)
            self._shards.append(shard)

    def _publish(self) -> PackIndex:
        self._close_shard()
        if not self._shards:
            raise UserError(f"there are no samples to pack into {self._folder}")
        index = PackIndex(
            fields=self._arguments.fields,
            shards=self._shards,
            num_samples=self.num_samples,
            classes=self._arguments.classes,
            source=self._arguments.source,
        )
        path = self._hidden / INDEX
        write_atomically(path, encode_index(index))
        if self._measure:
            index = msgspec.structs.replace(
                index, fields=measure_fields(self._hidden, self._measure)
            )
            write_atomically(path, encode_index(index))
        sync_folder(self._hidden)
        self._hidden.rename(self._folder)
        for name in (PROGRESS, LOCK):
            (self._folder / name).unlink(missing_ok=True)
        sync_folder(self._folder.absolute().parent)
        self._abandon()
        return read_index(self._folder)

    def _abandon(self) -> None:
        """Drop the unfinished shard and the lock."""
        if self._shard is not None:
            self._shard.abandon()
            self._shard = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _guard(self, effect: Callable[[], Result]) -> Result:
        """Run `effect`; after any error the writer is closed.

        Raises: UserError for an OSError.
        """
        try:
            return effect()
        except OSError as error:
            self._abandon()
            raise UserError(self._refusal(error)) from error
        except BaseException:
            self._abandon()
            raise

    def _refusal(self, error: OSError) -> str:
        kept = sum(shard.num_samples for shard in self._shards)
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return (
                f"{self._folder}: {error.strerror} while packing; {kept:,} samples are kept in "
                f"{self._hidden}\nmake room and run it again to go on, or remove that folder"
            )
        return f"{error.filename or self._folder} cannot be written: {error.strerror}"


def hidden_folder(folder: Path) -> Path:
    """Return the folder beside `folder` in which it is written."""
    return folder.absolute().parent / f".{folder.absolute().name}.packing"


def refuse_taken(folder: Path, *, is_pack: bool, remedy: str) -> None:
    """Raises: UserError when a pack or something else is in `folder`."""
    if is_pack:
        raise UserError(f"{folder} is a pack already: name another folder, or {remedy}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is there and no pack: name another folder")


def sync_folder(folder: Path) -> None:
    """Fsync a folder, where the file system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _take(folder: Path, hidden: Path) -> IO[bytes]:
    """Create and lock the hidden folder.

    Raises: UserError when `folder` exists or another process is writing it.
    """
    refuse_taken(folder, is_pack=(folder / INDEX).exists(), remedy="remove it")
    hidden.mkdir(parents=True, exist_ok=True)
    lock = open_lock(hidden / LOCK)
    if not try_lock(lock):
        lock.close()
        raise UserError(f"{folder} is being packed by another process: wait for it")
    return lock


def _whole(folder: Path, shards: Sequence[Shard]) -> list[Shard]:
    """Return the shards before the first one whose files are not all there."""
    return list(
        takewhile(
            lambda shard: all(
                (folder / file.name).is_file() and (folder / file.name).stat().st_size == file.bytes
                for file in shard.files
            ),
            shards,
        )
    )
