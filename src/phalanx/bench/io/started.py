"""Loaders with their readers up, kept from one epoch to the next: a run starts them once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from phalanx.bench.io.fetch import Fetch
from phalanx.bench.io.formats.store import Indices, Rows, Shape
from phalanx.data.prefetch import make_readers
from phalanx.records.io import IoCell, ReaderKind

TIMEOUT_S = 300.0  # for one batch


class Started(Protocol):
    def batches(self, wanted: list[Indices], depth: int) -> Iterator[Rows]: ...

    def close(self) -> None: ...


class Own:
    """Our readers."""

    def __init__(self, fetch: Fetch, readers: int, kind: ReaderKind) -> None:
        self._fetch = fetch
        self._readers = make_readers(fetch, readers, kind)
        begin = [fetch.first] * max(1, readers)  # every reader is up, and its data open
        for _ in self._readers.results(begin, depth=len(begin), timeout_s=TIMEOUT_S):
            pass

    def batches(self, wanted: list[Indices], depth: int) -> Iterator[Rows]:
        return self._readers.results(wanted, depth=max(1, depth), timeout_s=TIMEOUT_S)

    def close(self) -> None:
        self._readers.close()
        self._fetch.close()


class StartedLoaders:
    """By what tells them apart; made when they are first asked for."""

    def __init__(self) -> None:
        self._made: dict[tuple[str | int, ...], Started] = {}

    def of(self, cell: IoCell, folder: Path, shape: Shape) -> Started:
        key: tuple[str | int, ...] = (cell.format, cell.loader, cell.kind, cell.readers)
        if cell.loader != "phalanx":
            key = (*key, cell.depth)
        if key not in self._made:
            self._made[key] = _start(cell, Fetch(cell.format, folder, shape))
        return self._made[key]

    def close(self) -> None:
        for loader in self._made.values():
            loader.close()
        self._made = {}


def _start(cell: IoCell, fetch: Fetch) -> Started:
    if cell.loader == "phalanx":
        return Own(fetch, cell.readers, cell.kind)
    from phalanx.bench.io.rivals import TorchLoader  # only who compares waits for torch

    batched = cell.loader == "torch-batched"
    return TorchLoader(fetch, readers=cell.readers, depth=cell.depth, batched=batched)
