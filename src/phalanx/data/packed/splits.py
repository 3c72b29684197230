"""Splits of a pack: those found, and those listed in `splits.json`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from phalanx.data.packed.index import INDEX, PackIndex
from phalanx.data.packed.index_file import SPLITS, has_index, read_index
from phalanx.errors import UserError
from phalanx.records.files import DECODE_ERRORS, write_atomically
from phalanx.records.regular_file import check_regular


class SplitList(msgspec.Struct, frozen=True, kw_only=True):
    """`splits.json`: the samples of each split, so that one that is gone is missed."""

    splits: dict[str, int]


class FoundSplits(NamedTuple):
    indices: dict[Path, PackIndex]
    """By folder, of those that can be read."""
    faults: list[str]
    """What is wrong with the others, or between them."""


def write_splits(folder: Path, num_samples: Mapping[str, int]) -> None:
    write_atomically(folder / SPLITS, msgspec.json.encode(SplitList(splits=dict(num_samples))))


def find_splits(folder: Path) -> FoundSplits:
    """Find the splits of a pack, or the one split that `folder` is.

    Raises: UserError when it is neither.
    """
    if has_index(folder):
        return FoundSplits({folder: read_index(folder)}, [])
    if folder.is_dir() and _num_shards(folder):
        return FoundSplits({}, [f"{folder} {_fault(folder)}"])
    found = FoundSplits({}, [])
    expected = _expected(folder, found.faults)
    for child in _folders(folder):
        try:
            if has_index(child):
                found.indices[child] = read_index(child)
            elif child.name in ("train", "validation", *expected) or _num_shards(child):
                found.faults.append(f"{child} {_fault(child)}")
        except (UserError, OSError) as error:
            found.faults.append(str(error))
    for name, num_samples in expected.items():
        index = found.indices.get(folder / name)
        if not (folder / name).exists():
            found.faults.append(f"{folder / name} is missing: the pack has {', '.join(expected)}")
        elif index is not None and index.num_samples != num_samples:
            found.faults.append(
                f"{folder / name} has {index.num_samples:,} samples, and {num_samples:,} by "
                f"{SPLITS}: it is of another pack"
            )
    if not found.indices and not found.faults:
        read_index(folder)  # says what is missing
    return found


def _expected(folder: Path, faults: list[str]) -> Mapping[str, int]:
    """Read `splits.json`; empty for packs without one."""
    path = folder / SPLITS
    try:
        check_regular(path)
        return msgspec.json.decode(path.read_bytes(), type=SplitList).splits
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        faults.append(f"{path} cannot be read: {error.strerror}")
    except DECODE_ERRORS as error:
        faults.append(f"{path} is damaged: {error}")
    return {}


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(
            path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")
        )
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise UserError(f"{error.filename} cannot be read: {error.strerror}") from error


def _num_shards(folder: Path) -> int:
    return len(list(folder.glob("shard-?????.npy")))


def _fault(folder: Path) -> str:
    return f"has {_num_shards(folder)} shards and no {INDEX}: it is damaged, or not whole"
