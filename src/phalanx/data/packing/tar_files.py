"""Tar files in the manner of WebDataset: the members of a sample in a row, KEY.ENDING each.

Members are read where they lie; nothing is unpacked to disk, nothing unpickled. Archives are read
to their true end: Python's `tarfile` stops without a word at a bad header.

Source: POSIX.1-2017, `pax`, section "ustar Interchange Format"; CPython issue 120740.
"""

from __future__ import annotations

import dataclasses
import os
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

import numpy as np

from phalanx.data.packing.array_tables import parse_npy
from phalanx.data.packing.image_folder import ENDINGS
from phalanx.data.packing.options import OriginOptions
from phalanx.data.packing.records import RecordTable
from phalanx.data.packing.table import CountedItems, Part, fingerprint_of, text_of
from phalanx.errors import UserError
from phalanx.records.regular_file import readable

_CHUNK_BYTES = 2**20
BLOCK_BYTES = 512

MAX_TEXT_BYTES = 2**16
"""Most bytes of a target that is text."""


class Member(NamedTuple):
    file: int
    name: str
    offset: int
    size: int


class TarFiles(RecordTable):
    """Members are arrays (`.npy`), images or text."""

    part_word = "member"
    usual_inputs = ("inputs.npy", "inputs.png", "inputs.jpg", "png", "jpg", "jpeg", "webp", "npy")
    usual_targets = ("targets.npy", "cls", "label", "txt")

    def __init__(self, paths: Sequence[Path]) -> None:
        """Reads all headers. Raises: UserError for a damaged archive or an unsafe member."""
        super().__init__()
        self._paths = list(paths)
        self.text, self.fingerprint = text_of(paths), fingerprint_of(paths)
        self._samples = [
            sample for i, path in enumerate(paths) for sample in read_samples(i, path, self.skipped)
        ]
        self._files = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in paths]
        self._set_rows(len(self._samples))

    def choose(self, options: OriginOptions) -> tuple[list[str], str | None]:
        target = None if options.target is None else _ending(options.target)
        named = dataclasses.replace(
            options, inputs=tuple(map(_ending, options.inputs)), target=target
        )
        inputs, target = super().choose(named)
        used = {*inputs, target}
        for sample in self._samples:
            for ending, member in sample.items():
                if ending not in used:
                    self.skipped.add(f"members .{ending}, neither inputs nor targets", member.name)
        return inputs, target

    def record(self, number: int) -> Mapping[str, Member]:
        return self._samples[number]

    def place(self, number: int) -> str:
        return self._at(next(iter(self._samples[number].values())))

    def where(self, row: int, name: str) -> str:
        return self._at(self._samples[row][name])

    def part(self, value: Member, where: str) -> Part:
        kind = PurePosixPath(value.name).suffix.lower()
        if kind != ".npy" and kind not in ENDINGS and value.size > MAX_TEXT_BYTES:
            raise UserError(f"{where} is not a target: it has {value.size:,} bytes")
        content = os.pread(self._files[value.file], value.size, value.offset)
        if len(content) < value.size:
            raise UserError(f"{where} is cut off: the archive is truncated")
        if kind in ENDINGS:
            return content
        if kind == ".npy":
            array = parse_npy(content, where)
            native = array.astype(array.dtype.newbyteorder("="), copy=False)
            return np.ascontiguousarray(native).reshape(array.shape)
        try:
            return content.decode()
        except UnicodeDecodeError:
            raise UserError(f"{where} is neither text nor an array") from None

    def field_name(self, part: str) -> str:
        return PurePosixPath(part).stem.replace(".", "_")

    def close(self) -> None:
        while self._files:
            os.close(self._files.pop())

    def _at(self, member: Member) -> str:
        return f"{self._paths[member.file]}: {member.name} at byte {member.offset}"


def _ending(name: str) -> str:
    return name.lstrip(".").lower()


def read_samples(number: int, path: Path, skipped: CountedItems) -> Iterator[dict[str, Member]]:
    """Yield the members of one sample after the other, by ending.

    Archives that were joined are read on. number: of the file, for `Member`. skipped: gets the
    members `._…`, in which macOS keeps attributes of the files beside them.

    Raises: UserError for a damaged or truncated archive, a member that is no file or leaves its
            folder, or a second member of one ending in a sample.
    """
    key, sample = "", dict[str, Member]()
    try:
        with readable(path), path.open("rb") as file:
            for info in _read_infos(path, file):
                if info.isdir():
                    continue
                _check(path, info)
                if PurePosixPath(info.name).name.startswith("._"):
                    skipped.add("members ._…, attributes of macOS", info.name)
                    continue
                stem, _, ending = PurePosixPath(info.name).name.partition(".")
                full_key = str(PurePosixPath(info.name).parent / stem)
                if sample and full_key != key:
                    yield sample
                    sample = {}
                key, ending = full_key, ending.lower()
                if ending in sample:
                    raise UserError(
                        f"{path}: {info.name!r} at byte {info.offset_data} is a second .{ending} "
                        f"of its sample, after byte {sample[ending].offset}\nmembers of a sample "
                        "must be consecutive, with different endings"
                    )
                sample[ending] = Member(number, info.name, info.offset_data, info.size)
    except (tarfile.TarError, EOFError) as error:
        raise UserError(f"{path} is not a tar, or damaged: {error}") from error
    if sample:
        yield sample


def _read_infos(path: Path, file: IO[bytes]) -> Iterator[tarfile.TarInfo]:
    start: int | None = 0
    while start is not None:
        file.seek(start)
        with tarfile.open(fileobj=file, mode="r:") as archive:
            yield from archive
            end = archive.offset
        start = _next_archive(path, file, end)


def _next_archive(path: Path, file: IO[bytes], end: int) -> int | None:
    """Return where one begins behind the archive whose last member ends at `end`; None: nowhere.

    Raises: UserError when that archive does not end there, which is where reading stopped.
    """
    file.seek(end)
    block = file.read(BLOCK_BYTES)
    if len(block) < BLOCK_BYTES:
        raise UserError(
            f"{path} is cut off: it ends at byte {end + len(block)} without the block that ends an "
            "archive\ncopy or write it again"
        )
    if any(block):
        raise UserError(
            f"{path} is damaged: at byte {end} there is neither a member nor the archive's end\n"
            "copy or write it again"
        )
    start = end + BLOCK_BYTES
    while chunk := file.read(_CHUNK_BYTES):
        rest = chunk.lstrip(b"\0")
        if rest:
            return start + (len(chunk) - len(rest)) // BLOCK_BYTES * BLOCK_BYTES
        start += len(chunk)
    return None


def _check(path: Path, info: tarfile.TarInfo) -> None:
    name = PurePosixPath(info.name)
    if name.is_absolute() or ".." in name.parts:
        raise UserError(f"{path} is refused: its member {info.name!r} leaves the folder")
    if not info.isreg() or info.issparse():
        raise UserError(f"{path} is refused: its member {info.name!r} is a link or no plain file")
