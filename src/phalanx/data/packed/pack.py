"""Packed data, to be read at random: any sample of any shard, checked as it is read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from phalanx.data.packed.index import Field, PackIndex, Shard

Indices = NDArray[np.int64]


class Pack:
    """One split of a pack. Any thread may read; a forked or spawned process opens its own."""

    folder: Path
    index: PackIndex
    num_samples: int
    fields: dict[str, Field]
    shards: Sequence[Shard]
    first_samples: NDArray[np.int64]
    """(shards + 1,): the number of each shard's first sample, and `num_samples`."""
    num_damaged: int
    """Samples that were found altered so far, where these are skipped."""

    def __init__(self, folder: Path, *, damaged: Literal["stop", "skip"] = "stop") -> None:
        """Reads the index; shards are opened when they are first read.

        Raises: UserError when there is no index, it is damaged, or a shard is missing or not of
                the size that the index names.
        """
        raise NotImplementedError

    def read(self, field: str, indices: Indices, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """(n, …) of a field whose shape is known, decoded; row i is that of sample indices[i].

        out: where to; None makes an array. Cost: one copy of the bytes for a raw field.
        Raises: DamagedError (a UserError) naming shard, sample and offset when bytes are not those
                that were packed, or the shard ends before them; where damaged samples are skipped
                the rows are zeros and `damaged_of` names them.
        """
        raise NotImplementedError

    def read_bytes(self, field: str, indices: Indices) -> list[bytes]:
        """The bytes as they were packed, of a field of any shape, not decoded."""
        raise NotImplementedError

    def relocated(self, shard: int, folder: Path | None) -> None:
        """From now on read a shard's files from `folder` (staged there); None: from the pack."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError
