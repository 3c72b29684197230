"""Check that the files of a pack exist and have the sizes in its index."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from phalanx.data.packed.damage import WHAT_TO_DO, DamagedError
from phalanx.data.packed.index import PackIndex
from phalanx.data.packed.part_reader import PartReader
from phalanx.errors import UserError

PathOf = Callable[[int, int], Path]
"""(shard, number of the file) → its path."""


def check_files(index: PackIndex, path_of: PathOf, reader: PartReader, *, is_strict: bool) -> None:
    """Raises: UserError for a missing file; where `is_strict` also for one of another size, which
    is a DamagedError that names the first sample cut off where it is shorter."""
    for shard, described in enumerate(index.shards):
        for number, file in enumerate(described.files):
            path = path_of(shard, number)
            try:
                found = path.stat().st_size
            except OSError as error:
                raise UserError(f"{path} cannot be read: {error.strerror}") from error
            if found == file.bytes or not is_strict:
                continue
            if found < file.bytes and number > 0:
                raise _cut_off(index, path, reader, shard, number, found)
            raise UserError(
                f"{path} is damaged: it has {found} bytes, not {file.bytes}\n{WHAT_TO_DO}"
            )


def _cut_off(
    index: PackIndex, path: Path, reader: PartReader, shard: int, number: int, found: int
) -> DamagedError:
    samples = np.arange(reader.first_samples[shard], reader.first_samples[shard + 1])
    fields = range(len(index.fields)) if index.layout == "tar" else [number - 1]
    parts = [reader.locate(field, samples).parts for field in fields]
    ends = np.max([part.offsets + part.sizes for part in parts], axis=0)
    first = int(np.argmax(ends > found))
    return DamagedError(
        f"lies beyond its end: it has {found} bytes, not {index.shards[shard].files[number].bytes}",
        file=path,
        sample=int(samples[first]),
        offset_bytes=min(int(part.offsets[first]) for part in parts),
    )
