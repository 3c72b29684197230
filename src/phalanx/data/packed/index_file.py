"""Reading and writing of `index.json`, which is checked before a file is opened or memory is
allocated from it."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from phalanx.data.packed.index import (
    INDEX,
    SCHEMA_VERSION,
    Field,
    PackIndex,
    Shard,
    file_names,
    sample_bytes,
    table_dtype,
)
from phalanx.errors import UserError
from phalanx.records.files import DECODE_ERRORS
from phalanx.records.regular_file import read_regular, readable

MAX_HEADER_BYTES = 1 << 16
MAX_BYTES = 1 << 50  # no sample, no shard
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


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
            hint = f"; use one of its splits, {folder / splits[0]}" if splits else ""
            raise UserError(f"{folder} is not a pack: it has no {INDEX}{hint}") from None
    try:
        schema = msgspec.json.decode(content, type=_Schema).schema
        if schema != SCHEMA_VERSION:
            how = "update it" if schema > SCHEMA_VERSION else "pack the data again"
            raise UserError(
                f"{path} has schema {schema}, but this Phalanx reads {SCHEMA_VERSION}: {how}"
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


def check_fields(fields: Sequence[Field]) -> None:
    """Raises: UserError for a field that no pack can have, naming it."""
    names = [field.name for field in fields]
    if not names or len(set(names)) != len(names):
        raise UserError(f"a pack needs fields with different names, not {names}")
    for field in fields:
        fault = _fault_of_field(field)
        if fault:
            raise UserError(f"field {field.name!r} cannot be packed: {fault}")


def check_index(index: PackIndex, path: Path) -> None:
    """Raises: UserError, naming `path` and the numbers that do not fit each other."""
    counted = sum(shard.num_samples for shard in index.shards)
    try:
        check_fields(index.fields)
        if index.num_samples < 1 or counted != index.num_samples:
            raise UserError(f"its shards have {counted} samples together, not {index.num_samples}")
        for number, shard in enumerate(index.shards):
            _check_shard(index, number, shard)
    except UserError as error:
        raise UserError(f"{path} is damaged: {error}") from None


def _fault_of_field(field: Field) -> str:
    if not _NAME.fullmatch(field.name):
        return "a name is made of letters, digits, - and _"
    try:
        dtype = np.dtype(field.dtype)
    except TypeError:
        return f"there is no dtype {field.dtype!r}"
    if dtype.kind not in "biufc":
        return f"its dtype {field.dtype} is not one of numbers"
    shape = field.shape
    if shape is not None and (
        len(shape) > 8
        or any(size < 0 for size in shape)
        or math.prod(shape) * dtype.itemsize > MAX_BYTES
    ):
        return f"{shape} is not the shape of a sample"
    if field.encoding != "raw" and dtype != np.uint8:
        return f"{field.encoding} needs uint8, not {field.dtype}"
    if (
        field.encoding != "raw"
        and shape is not None
        and (len(shape) != 3 or shape[0] not in (1, 3))
    ):
        return f"{field.encoding} needs (1 or 3, height, width), not {shape}"
    return ""


def _check_shard(index: PackIndex, number: int, shard: Shard) -> None:
    expected = file_names(index.fields, number)
    names = [file.name for file in shard.files]
    if names != expected:
        raise UserError(f"shard {number} has the files {names}, expected {expected}")
    if shard.num_samples < 1:
        raise UserError(f"shard {number} has {shard.num_samples} samples")
    sizes = [table_dtype(index.fields).itemsize, *map(sample_bytes, index.fields)]
    for file, size in zip(shard.files, sizes, strict=True):
        header = file.bytes - shard.num_samples * (size or 0)
        if not 0 < header <= (MAX_BYTES if size is None else MAX_HEADER_BYTES):
            raise UserError(
                f"{file.name} should have {file.bytes} bytes for {shard.num_samples} samples"
            )


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
                f"{path / INDEX}: it belongs to another pack"
            )


def _folders(folder: Path) -> list[Path]:
    with readable():
        if not folder.is_dir():
            return []
        return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _num_shards(folder: Path) -> int:
    return len(list(folder.glob("shard-?????.npy")))


def _fault(folder: Path) -> str:
    return f"has {_num_shards(folder)} shards and no {INDEX}: it is damaged or incomplete"
