"""Base class of origins that are read in chunks, the last of which is cached."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx.data.packed.index import Field
from phalanx.data.packed.shard_writers import Rows, Sample
from phalanx.data.packing.origin import Numbers, SkippedItems


class ChunkedOrigin(ABC):
    """Origin with targets in memory, and inputs from the cached chunk."""

    text: str
    fingerprint: str
    fields: list[Field]
    classes: list[str]
    chunks: list[range]
    validation: Numbers | None = None
    targets: NDArray[Any]
    skipped: list[SkippedItems]
    notes: list[str]

    _kept: tuple[int, Any] = (-1, None)

    def read(self, numbers: Numbers) -> Rows | list[Sample]:
        parts = [self._inputs(part) for part in self._by_chunk(numbers)]
        targets = self.targets[numbers]
        if parts and isinstance(parts[0], np.ndarray):
            return {"inputs": np.concatenate(parts), "targets": targets}
        inputs = [item for part in parts for item in part]
        return [{"inputs": item, "targets": targets[i, ...]} for i, item in enumerate(inputs)]

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def read_chunk(self, chunk: int) -> NDArray[Any] | Sequence[Any]:
        """Inputs (n, …) of all its samples, or an object for each, for `pack_item`."""

    def pack_item(self, item: Any, number: int) -> NDArray[Any] | bytes:
        """Convert an object of `read_chunk` to its packed form. number: of the sample."""
        raise NotImplementedError(f"{type(self).__name__} reads arrays")

    def _by_chunk(self, numbers: Numbers) -> list[Numbers]:
        """Runs of samples of one chunk."""
        starts = [chunk.start for chunk in self.chunks]
        chunk_of = np.searchsorted(starts, numbers, side="right")
        return np.split(numbers, np.flatnonzero(np.diff(chunk_of)) + 1)

    def _inputs(self, numbers: Numbers) -> Any:
        starts = [chunk.start for chunk in self.chunks]
        chunk = int(np.searchsorted(starts, numbers[0], side="right")) - 1
        if self._kept[0] != chunk:
            self._kept = (-1, None)  # not two of them at once
            self._kept = (chunk, self.read_chunk(chunk))
        content, rows = self._kept[1], numbers - starts[chunk]
        if isinstance(content, np.ndarray):
            return content[rows]
        return [
            self.pack_item(content[row], number)
            for row, number in zip(rows.tolist(), numbers.tolist(), strict=True)
        ]
