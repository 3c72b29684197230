"""Measurement of one epoch of one loader on one rank."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from phalanx.bench.io.formats import Indices, Rows
from phalanx.bench.io.generate import DataLocation, data_files, wrong_samples
from phalanx.bench.io.loaders import BatchLoader, open_loader
from phalanx.bench.io.page_cache import drop, drop_names, plain_read, resident_share
from phalanx.bench.io.scaling import Workload
from phalanx.records.io import READS, Cache, Format, IoCell

SPIN_S = 2e-4  # a sleep ends late by less than this


@dataclass(frozen=True, kw_only=True)
class EpochTiming:
    """Measurements of one epoch, the fields of an `IoEpochEvent`."""

    total_s: float
    waits_s: list[float]
    samples: int
    bytes: int  # requested: of samples, or of full files
    resident: float | None  # share of pages in the page cache before the epoch
    wrong: int = 0


def timed_epoch(
    batches: Iterator[Rows],
    wanted: list[Indices],
    *,
    compute_s: float,
    began: float,
    resident: float | None = None,
) -> EpochTiming:
    """Time an epoch: wait for each batch, then emulate its compute.

    began: perf_counter before the loader started; the first wait includes the start.
    """
    waits_s, samples, num_bytes, wrong = [], 0, 0, 0
    asked = began
    for indices in wanted:
        rows = next(batches)
        got = time.perf_counter()
        waits_s.append(got - asked)
        samples += len(rows)
        num_bytes += rows.nbytes
        wrong += wrong_samples(rows, indices)
        del rows  # release the buffer of the batch
        if compute_s:
            wait_until(got + compute_s)
        asked = time.perf_counter()
    return EpochTiming(
        total_s=asked - began,
        waits_s=waits_s,
        samples=samples,
        bytes=num_bytes,
        resident=resident,
        wrong=wrong,
    )


def wait_until(moment: float) -> None:
    """Sleep until shortly before `moment`, then spin."""
    if (left_s := moment - time.perf_counter() - SPIN_S) > 0:
        time.sleep(left_s)
    while time.perf_counter() < moment:
        pass


class LoaderBenchmark:
    """Measures epochs on one rank. barrier: synchronizes the ranks before each epoch."""

    def __init__(
        self,
        location: DataLocation,
        workload: Workload,
        *,
        part: int,
        barrier: Callable[[], None],
        drop_names: bool = False,
        kept_batches: int = 5,
    ) -> None:
        """kept_batches: number that a loader holds at once; `read-kept` fills as much memory."""
        self._location, self._workload = location, workload
        self._part, self._barrier = part, barrier
        self._drop_names = drop_names
        self._kept_bytes = kept_batches * workload.batch_size * workload.sample_bytes
        self._kept: memoryview | None = None
        self._loaders: dict[IoCell, BatchLoader] = {}
        """Started loaders, each made at its first use, also for the other state of the cache."""

    def epoch(self, cell: IoCell, compute_s: float, *, order: int) -> EpochTiming:
        """Measure an epoch. Collective. order: seed of the sample order; compute_s 0: flat out."""
        folder = self._location.part(cell.format, self._part)
        files = data_files(folder)
        if cell.cache == "cold":  # the kernel keeps the pages of mapped files in its page cache
            self._close(cell.format)
        if cell.loader in READS:
            return self._plain(cell, files)
        index_batches = epoch_batches(self._workload, order, paced=compute_s > 0)
        key = msgspec.structs.replace(cell, cache="warm")
        is_new = key not in self._loaders
        if is_new:
            self._loaders[key] = open_loader(cell, folder, self._location.shape)
        loader = self._loaders[key]
        if is_new and cell.cache == "warm":
            for _ in loader.batches(index_batches, cell.depth):
                pass
        resident = self._prepare_cache(cell.cache, files)
        began = time.perf_counter()
        batches = loader.batches(index_batches, cell.depth)
        timed = timed_epoch(
            batches, index_batches, compute_s=compute_s, began=began, resident=resident
        )
        assert next(batches, None) is None
        return timed

    def close(self) -> None:
        """End all readers."""
        for format_ in {cell.format for cell in self._loaders}:
            self._close(format_)

    def _close(self, format_: Format) -> None:
        for cell in [cell for cell in self._loaders if cell.format == format_]:
            self._loaders.pop(cell).close()

    def _plain(self, cell: IoCell, files: list[Path]) -> EpochTiming:
        into = self._memory() if cell.loader == "read-kept" else None
        resident = self._prepare_cache(cell.cache, files)
        began = time.perf_counter()
        num_bytes = plain_read(files, into)
        took_s = time.perf_counter() - began
        return EpochTiming(
            total_s=took_s,
            waits_s=[took_s],
            samples=self._workload.num_samples,
            bytes=num_bytes,
            resident=resident,
        )

    def _memory(self) -> memoryview:
        """Return memory for the batches that are kept, every page of it touched."""
        if self._kept is None:
            self._kept = np.full(self._kept_bytes, 1, np.uint8).data
        return self._kept

    def _prepare_cache(self, cache: Cache, files: list[Path]) -> float | None:
        """Load or drop the page cache, enter the barrier; return the share of pages in it."""
        if cache == "warm":
            plain_read(files)
        else:
            drop(files)
            if self._drop_names:
                drop_names()
        share = resident_share(files)
        self._barrier()
        return share


def epoch_batches(workload: Workload, order: int, *, paced: bool) -> list[Indices]:
    """Return the sample indices of an epoch's batches in the order of seed `order`: all, or if
    paced the first `steps`."""
    shuffled = np.random.default_rng(order).permutation(workload.num_samples).astype(np.int64)
    batches = np.split(shuffled, workload.num_samples // workload.batch_size)
    return batches[: workload.steps] if paced else batches
