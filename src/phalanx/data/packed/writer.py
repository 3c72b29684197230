"""Writes a pack: whole, or not at all; what was interrupted goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from numpy.typing import NDArray

from phalanx.data.packed.index import Field, Layout, PackIndex


class PackWriter:
    """Appends samples to shards of about `shard_bytes`. Each shard is written under another name,
    brought to the disk and renamed; the index comes last. In a folder where an interrupted
    `PackWriter` of the same data was at work, `num_samples` says how many are there already: the
    caller goes on with the next one.

    Raises: UserError when the disk is full or the folder cannot be written; what was there before
            stays.
    """

    num_samples: int

    def __init__(
        self,
        folder: Path,
        *,
        layout: Layout,
        fields: Sequence[Field],
        shard_bytes: int = 256 * 2**20,
        source: str = "",
        classes: Sequence[str] = (),
    ) -> None:
        raise NotImplementedError

    def add(self, sample: Mapping[str, NDArray[Any] | bytes]) -> None:
        """By field: an array of its dtype and shape, or the encoded bytes."""
        raise NotImplementedError

    def add_rows(self, rows: Mapping[str, NDArray[Any]]) -> None:
        """Many samples of raw fields at once, (n, …) each."""
        raise NotImplementedError

    def finish(self) -> PackIndex:
        """Close the last shard and write the index."""
        raise NotImplementedError

    def __enter__(self) -> PackWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Without an error: `finish`. With one: whole shards stay to go on from."""
        raise NotImplementedError
