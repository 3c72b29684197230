"""Reading and writing of `index.json`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from phalanx.data.packed.check_index import check_index
from phalanx.data.packed.index import INDEX, SCHEMA_VERSION, PackIndex
from phalanx.errors import UserError
from phalanx.records.files import DECODE_ERRORS
from phalanx.records.regular_file import read_regular, readable


def read_index(folder: Path) -> PackIndex:
    """Read and validate the index of one split; no shard is opened.

    Raises: UserError when there is none, it is damaged, or a newer Phalanx made it.
    """
    path = folder / INDEX
    with readable(path):
        try:
            content = read_regular(path)
        except (FileNotFoundError, NotADirectoryError):
            splits = splits_of(folder)
            hint = f"; name a split of it, {folder / splits[0]}" if splits else ""
            raise UserError(f"{folder} is no pack: it has no {INDEX}{hint}") from None
    try:
        schema = msgspec.json.decode(content, type=_Schema).schema
        if schema != SCHEMA_VERSION:
            how = "update it" if schema > SCHEMA_VERSION else "pack the data again"
            raise UserError(
                f"{path} has schema {schema}, and this Phalanx reads {SCHEMA_VERSION}: {how}"
            )
        index = msgspec.json.decode(content, type=PackIndex)
    except DECODE_ERRORS as error:
        raise UserError(f"{path} is damaged: {error}") from error
    check_index(index, path)
    if index.sha256 != _digest(index):
        raise UserError(f"{path} was altered since it was written: pack the data again")
    return index


def encode_index(index: PackIndex) -> bytes:
    """Encode the index as JSON, with its own checksum."""
    signed = msgspec.structs.replace(index, sha256=_digest(index))
    return msgspec.json.format(msgspec.json.encode(signed), indent=1) + b"\n"


def _digest(index: PackIndex) -> str:
    unsigned = msgspec.structs.replace(index, sha256="")
    return hashlib.sha256(msgspec.json.encode(unsigned)).hexdigest()


def splits_of(folder: Path) -> list[str]:
    """Return which of the usual splits exist with an index."""
    return [name for name in ("train", "validation") if has_index(folder / name)]


def has_index(folder: Path) -> bool:
    """Raises: UserError when the folder cannot be read."""
    with readable(folder / INDEX):
        return (folder / INDEX).is_file()


class _Schema(msgspec.Struct):
    schema: int


class FoundSplits(NamedTuple):
    indices: dict[Path, PackIndex]
    """Indices that can be read, by folder."""
    faults: list[str]
    """Faults of the other folders, or between folders."""


def find_splits(folder: Path) -> FoundSplits:
    """Find the splits of a pack, or the one split that `folder` is.

    Raises: UserError when it is neither.
    """
    if has_index(folder):
        return FoundSplits({folder: read_index(folder)}, [])
    if folder.is_dir() and _num_shards(folder):
        return FoundSplits({}, [f"{folder} {_fault(folder)}"])
    found = FoundSplits({}, [])
    for child in _folders(folder):
        try:
            if has_index(child):
                found.indices[child] = read_index(child)
            elif child.name in ("train", "validation") or _num_shards(child):
                found.faults.append(f"{child} {_fault(child)}")
        except (UserError, OSError) as error:
            found.faults.append(str(error))
    found.faults.extend(_misfits(folder, found.indices))
    if not found.indices and not found.faults:
        read_index(folder)  # says what is missing
    return found


def _misfits(folder: Path, indices: Mapping[Path, PackIndex]) -> Iterator[str]:
    """Yield which splits are missing or of another pack, by what the indices of others say."""
    expected = {name: (n, path) for path, it in indices.items() for name, n in it.splits.items()}
    for name, (num_samples, path) in expected.items():
        index = indices.get(folder / name)
        if not (folder / name).exists():
            yield f"{folder / name} is missing: the pack has {', '.join(expected)}"
        elif index is not None and index.num_samples != num_samples:
            yield (
                f"{folder / name} has {index.num_samples:,} samples, and {num_samples:,} by "
                f"{path / INDEX}: it is of another pack"
            )


def _folders(folder: Path) -> list[Path]:
    with readable():
        if not folder.is_dir():
            return []
        return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _num_shards(folder: Path) -> int:
    return len(list(folder.glob("shard-?????.npy")))


def _fault(folder: Path) -> str:
    return f"has {_num_shards(folder)} shards and no {INDEX}: it is damaged, or not whole"
