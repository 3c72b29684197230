"""Reading and writing of `index.json`."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from phalanx.data.packed.check_index import check_index
from phalanx.data.packed.index import INDEX, SCHEMA_VERSION, PackIndex
from phalanx.errors import UserError
from phalanx.records.files import DECODE_ERRORS
from phalanx.records.regular_file import check_regular

SPLITS = "splits.json"


def read_index(folder: Path) -> PackIndex:
    """Read and validate the index of one split; no shard is opened.

    Raises: UserError when there is none, it is damaged, or a newer Phalanx made it.
    """
    path = folder / INDEX
    try:
        check_regular(path)
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{folder} is no pack: it has no {INDEX}{_hint(folder)}") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    try:
        schema = msgspec.json.decode(content, type=_Schema).schema
        if schema > SCHEMA_VERSION:
            raise UserError(
                f"{path} has schema {schema}; this Phalanx reads up to {SCHEMA_VERSION}: update it"
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
    try:
        return (folder / INDEX).is_file()
    except OSError as error:
        raise UserError(f"{folder / INDEX} cannot be read: {error.strerror}") from error


class _Schema(msgspec.Struct):
    schema: int


def _hint(folder: Path) -> str:
    splits = splits_of(folder)
    return f"; name a split of it, {folder / splits[0]}" if splits else ""
