"""Source of batches from packed data, prefetched in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from phalanx.data.packed.pack import Pack
from phalanx.data.reading.pack_reader import (
    PackReader,
    Preparation,
    ReadRequest,
    ReadResult,
    SplitReader,
)
from phalanx.data.reading.prefetch import ReaderKind, Readers, make_readers, trace_reads
from phalanx.data.sampler import EpochPlace, GlobalBatches
from phalanx.data.sources.in_memory import evaluation_slices
from phalanx.data.sources.pack_description import TRAIN, VALIDATION, PackDescription
from phalanx.data.sources.source import IGNORED, LoadedBatch
from phalanx.data.staging.stage_plan import StageUnit
from phalanx.data.staging.staged_view import StagedView
from phalanx.data.staging.stager import Stager
from phalanx.data.windowed_shuffle import windowed_order
from phalanx.errors import UserError
from phalanx.records.spans import SpanRecorder

MAX_LISTED = 10
"""Damaged samples listed in a notice."""


@dataclass(frozen=True, kw_only=True)
class ReaderOptions:
    """Options of the readers: number, kind, prefetch depth, cache, damaged samples, shuffling."""

    readers: int = 2
    kind: ReaderKind = "threads"
    depth: int = 4
    """Batches in progress or waiting."""
    cache_bytes: int = 0
    damaged: Literal["stop", "skip"] = "stop"
    shuffle_shards: int | None = None
    """Shuffle within windows of this many shards; None: shuffle all samples."""
    timeout_s: float = 300.0


class PackSource:
    """A `Source` of packed data."""

    def __init__(
        self,
        description: PackDescription,
        preparation: Preparation,
        options: ReaderOptions,
        *,
        train_samples: int | None = None,
        validation_samples: int | None = None,
        staged: Path | None = None,
        spans: SpanRecorder | None = None,
    ) -> None:
        """staged: a folder for staged shards, with a folder for each split. spans: traces reads of
        threads; processes are not traced.

        Raises: UserError when a shard is missing or cut short, or there are fewer samples.
        """
        self.name, self.reason, self.shape = description.name, description.reason, description.shape
        self.skips_damaged = options.damaged == "skip"
        self._options, self._preparation = options, preparation
        self._packs = {
            split: Pack(description.folder / split, damaged=options.damaged)
            for split in (TRAIN, VALIDATION)
        }
        self.num_train = _checked_count("--train-samples", train_samples, description.num_train)
        self.num_validation = _checked_count(
            "--validation-samples", validation_samples, description.num_validation
        )
        self.order = f"{self.num_train} samples of {self.name} {description.fingerprint} " + (
            "at random"
            if options.shuffle_shards is None
            else f"in windows of {options.shuffle_shards} shards"
        )
        splits = {
            split: SplitReader(
                pack,
                preparation,
                cache_bytes=options.cache_bytes if split == TRAIN else 0,
                staged=StagedView(staged / split) if staged else None,
            )
            for split, pack in self._packs.items()
        }
        fetch: Callable[[ReadRequest], ReadResult] = PackReader(splits)
        if spans is not None and (options.kind == "threads" or not options.readers):
            fetch = trace_reads(fetch, spans)
        self._readers: Readers[ReadRequest, ReadResult] = make_readers(
            fetch, options.readers, options.kind
        )
        self.position = (0, 0)
        """Epoch, and the number of its samples loaded so far, over all ranks."""
        self.stager: Stager | None = None
        """Stager of this node, if this rank runs it; closed with the source."""
        self.copies = ExitStack()
        """Copies of the pack on nodes that lack it; removed with the source, collectively."""
        self.opening_notice = ""
        self._damaged_samples: dict[str, set[int]] = {TRAIN: set(), VALIDATION: set()}
        self._num_reported: dict[str, int] = {TRAIN: 0, VALIDATION: 0}

    def train_batches(self, **place: Unpack[EpochPlace]) -> Iterator[LoadedBatch]:
        epoch, order = place["epoch"], self._windowed_order(place["seed"], place["epoch"])
        batches = GlobalBatches(num_samples=self.num_train, order=order, **place)
        sizes: list[int] = []

        def work() -> Iterator[ReadRequest]:
            for batch in batches:
                sizes.append(batch.global_size)
                yield ReadRequest(TRAIN, batch.indices.numpy(), epoch)

        self.position = epoch, place.get("first_sample", 0)
        for result in self._read(work()):
            size = sizes.pop(0)
            yield self._load_batch(TRAIN, result, size)
            self.position = epoch, self.position[1] + size

    def validation_batches(
        self, *, rank: int, num_ranks: int, batch_size: int
    ) -> Iterator[LoadedBatch]:
        work = (
            ReadRequest(VALIDATION, np.arange(part.start, part.stop))
            for part in evaluation_slices(self.num_validation, rank, num_ranks, batch_size)
        )
        for result in self._read(work):
            yield self._load_batch(VALIDATION, result, len(result.targets))

    def read(
        self, split: str, samples: Iterable[NDArray[np.int64]], epoch: int
    ) -> Iterator[LoadedBatch]:
        """Yield batches of the samples of a split that have these numbers. epoch: of which images
        are augmented."""
        work = (ReadRequest(split, chosen, epoch) for chosen in samples)
        for result in self._read(work):
            yield self._load_batch(split, result, len(result.targets))

    def notices(self) -> list[str]:
        """Return notices of staging and of damaged samples found since the last call."""
        notices = self.stager.notices() if self.stager is not None else []
        notices += filter(None, [self.opening_notice])
        self.opening_notice = ""
        for split, samples in self._damaged_samples.items():
            if len(samples) > self._num_reported[split]:
                self._num_reported[split] = len(samples)
                listed = ", ".join(map(str, sorted(samples)[:MAX_LISTED]))
                more = ", …" if len(samples) > MAX_LISTED else ""
                notices.append(
                    f"{self._packs[split].folder}: {len(samples)} damaged so far, and left out: "
                    f"sample {listed}{more}"
                )
        return notices

    def close(self) -> None:
        self._readers.close()
        for pack in self._packs.values():
            pack.close()
        if self.stager is not None:
            self.stager.close()
        self.copies.close()

    def _read(self, work: Iterator[ReadRequest]) -> Iterator[ReadResult]:
        options = self._options
        return self._readers.results(work, depth=options.depth, timeout_s=options.timeout_s)

    def _windowed_order(self, seed: int, epoch: int) -> Tensor | None:
        window = self._options.shuffle_shards
        if window is None:
            return None
        return windowed_order(self.first_samples(TRAIN), window, seed, epoch)

    def first_samples(self, split: str) -> list[int]:
        """Return the number of the first sample of each shard that is read, then the number of
        samples."""
        number = self.num_train if split == TRAIN else self.num_validation
        starts = self._packs[split].first_samples.tolist()
        return [start for start in starts if start < number] + [number]

    def stage_units(self) -> list[StageUnit]:
        """Return the shards that are read: for training, then for validation."""
        return [
            StageUnit(split=split, files=tuple(shard.files))
            for split, pack in self._packs.items()
            for shard in pack.shards[: len(self.first_samples(split)) - 1]
        ]

    def _load_batch(self, split: str, result: ReadResult, global_size: int) -> LoadedBatch:
        num_samples = len(result.targets)
        self._damaged_samples[split].update(result.damaged.tolist())
        if num_samples:
            inputs, targets = torch.from_numpy(result.inputs), torch.from_numpy(result.targets)
        else:
            dtype = getattr(torch, self._preparation.dtype)
            inputs = torch.zeros(1, *self.shape.inputs, dtype=dtype)
            like = result.targets
            targets = torch.from_numpy(np.full((1, *like.shape[1:]), IGNORED, like.dtype))
        return LoadedBatch(inputs, targets, num_samples, global_size, len(result.damaged))


def _checked_count(option: str, wanted: int | None, there: int) -> int:
    if wanted is not None and not 1 <= wanted <= there:
        raise UserError(f"{option} must be 1 to {there} for this data, not {wanted}")
    return wanted or there
