"""Members of a tar, to its true end: Python's `tarfile` stops without a word at a bad header.

Source: POSIX.1-2017, `pax`, section "ustar Interchange Format"; CPython issue 120740.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from phalanx.data.packed.shard_writers import BLOCK_BYTES
from phalanx.data.packing.origin import SkippedItems
from phalanx.errors import UserError
from phalanx.records.regular_file import readable

_CHUNK_BYTES = 2**20


class Member(NamedTuple):
    file: int
    name: str
    offset: int
    size: int


def read_samples(number: int, path: Path, of_macos: SkippedItems) -> Iterator[dict[str, Member]]:
    """Yield the members of one sample after the other, by ending.

    Archives that were joined are read on. number: of the file, for `Member`. of_macos: gets the
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
                    of_macos.add(info.name)
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
                        f"of its sample, after byte {sample[ending].offset}\n"
                        "members of a sample stand in a row, and differ in their endings"
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
            "archive\ncopy it again, or write it again whole"
        )
    if any(block):
        raise UserError(
            f"{path} is damaged: at byte {end} there is neither a member nor the archive's end\n"
            "copy it again, or write it again whole"
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
