"""Packed data as a source of batches: read, decoded and normalised ahead, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from phalanx.data.packed.pack import Pack
from phalanx.data.reading.pack_reader import (
    PackReader,
    Preparation,
    ReadRequest,
    ReadResult,
    SplitReader,
)
from phalanx.data.reading.prefetch import ReaderKind, Readers, make_readers
from phalanx.data.reading.tracing import trace_reads
from phalanx.data.sampler import GlobalBatches
from phalanx.data.sources.in_memory import evaluation_parts
from phalanx.data.sources.pack_description import TRAIN, VALIDATION, DescribedPack
from phalanx.data.sources.source import IGNORED, Loaded
from phalanx.data.staging.stage_plan import StageUnit
from phalanx.data.staging.staged_view import StagedView
from phalanx.data.staging.stager import Stager
from phalanx.data.windowed_shuffle import windowed_order
from phalanx.errors import UserError
from phalanx.records.spans import SpanRecorder

MOST_NAMED = 10
"""Damaged samples whose numbers are told."""


@dataclass(frozen=True, kw_only=True)
class Ahead:
    """Options of the readers: number, kind, prefetch depth, cache, damaged samples, shuffling."""

    readers: int = 2
    kind: ReaderKind = "threads"
    depth: int = 4
    """Batches that are being made or wait."""
    cache_bytes: int = 0
    damaged: Literal["stop", "skip"] = "stop"
    shuffle_shards: int | None = None
    """Shuffle within windows of so many shards; None: all samples at random."""
    timeout_s: float = 300.0


class FromPack:
    """A `Source`."""

    def __init__(
        self,
        described: DescribedPack,
        preparation: Preparation,
        ahead: Ahead,
        *,
        train_samples: int | None = None,
        validation_samples: int | None = None,
        staged: Path | None = None,
        spans: SpanRecorder | None = None,
    ) -> None:
        """staged: a folder in which shards of both splits may turn up, a folder each. spans: where
        threads that read are traced; processes are not.

        Raises: UserError when a shard is missing or cut short, or there are fewer samples.
        """
        self.name, self.reason, self.shape = described.name, described.reason, described.shape
        self.skips_damaged = ahead.damaged == "skip"
        self._ahead, self._preparation = ahead, preparation
        self._packs = {
            split: Pack(described.folder / split, damaged=ahead.damaged)
            for split in (TRAIN, VALIDATION)
        }
        self.num_train = _first_so_many("--train-samples", train_samples, described.num_train)
        self.num_validation = _first_so_many(
            "--validation-samples", validation_samples, described.num_validation
        )
        self.order = f"{self.num_train} samples of {self.name} {described.fingerprint} " + (
            "at random"
            if ahead.shuffle_shards is None
            else f"in windows of {ahead.shuffle_shards} shards"
        )
        splits = {
            split: SplitReader(
                pack,
                preparation,
                cache_bytes=ahead.cache_bytes if split == TRAIN else 0,
                staged=StagedView(staged / split) if staged else None,
            )
            for split, pack in self._packs.items()
        }
        fetch: Callable[[ReadRequest], ReadResult] = PackReader(splits)
        if spans is not None and (ahead.kind == "threads" or not ahead.readers):
            fetch = trace_reads(fetch, spans)
        self._readers: Readers[ReadRequest, ReadResult] = make_readers(
            fetch, ahead.readers, ahead.kind
        )
        self.place = (0, 0)
        """Epoch, and samples of it that all ranks have been given."""
        self.stager: Stager | None = None
        """What brings shards to this node, where this rank does; it is closed with the source."""
        self._damaged: dict[str, set[int]] = {TRAIN: set(), VALIDATION: set()}
        self._told: dict[str, int] = {TRAIN: 0, VALIDATION: 0}

    def train_batches(
        self,
        *,
        seed: int,
        epoch: int,
        global_batch_size: int,
        rank: int,
        num_ranks: int,
        first_sample: int = 0,
    ) -> Iterator[Loaded]:
        batches = GlobalBatches(
            num_samples=self.num_train,
            global_batch_size=global_batch_size,
            seed=seed,
            epoch=epoch,
            rank=rank,
            world_size=num_ranks,
            first_sample=first_sample,
            order=self._order(seed, epoch),
        )
        sizes: list[int] = []

        def work() -> Iterator[ReadRequest]:
            for batch in batches:
                sizes.append(batch.global_size)
                yield ReadRequest(TRAIN, batch.indices.numpy(), epoch)

        self.place = epoch, first_sample
        for result in self._read(work()):
            size = sizes.pop(0)
            yield self._loaded(TRAIN, result, size)
            self.place = epoch, self.place[1] + size

    def validation_batches(self, *, rank: int, num_ranks: int, batch_size: int) -> Iterator[Loaded]:
        work = (
            ReadRequest(VALIDATION, np.arange(part.start, part.stop))
            for part in evaluation_parts(self.num_validation, rank, num_ranks, batch_size)
        )
        for result in self._read(work):
            yield self._loaded(VALIDATION, result, len(result.targets))

    def notices(self) -> list[str]:
        """Return notices of staging and of damaged samples found since the last call."""
        notices = self.stager.notices() if self.stager is not None else []
        for split, samples in self._damaged.items():
            if len(samples) > self._told[split]:
                self._told[split] = len(samples)
                some = ", ".join(map(str, sorted(samples)[:MOST_NAMED]))
                more = ", …" if len(samples) > MOST_NAMED else ""
                notices.append(
                    f"{self._packs[split].folder}: {len(samples)} damaged so far, and left out: "
                    f"sample {some}{more}"
                )
        return notices

    def close(self) -> None:
        self._readers.close()
        for pack in self._packs.values():
            pack.close()
        if self.stager is not None:
            self.stager.close()

    def _read(self, work: Iterator[ReadRequest]) -> Iterator[ReadResult]:
        ahead = self._ahead
        return self._readers.results(work, depth=ahead.depth, timeout_s=ahead.timeout_s)

    def _order(self, seed: int, epoch: int) -> Tensor | None:
        window = self._ahead.shuffle_shards
        if window is None:
            return None
        return windowed_order(self.first_samples(TRAIN), window, seed, epoch)

    def first_samples(self, split: str) -> list[int]:
        """The number of each shard's first sample, and in the end that of all; of the shards that
        are read."""
        number = self.num_train if split == TRAIN else self.num_validation
        starts = self._packs[split].first_samples.tolist()
        return [start for start in starts if start < number] + [number]

    def units(self) -> list[StageUnit]:
        """The shards that are read: for training, then for validation."""
        return [
            StageUnit(split=split, files=tuple(shard.files))
            for split, pack in self._packs.items()
            for shard in pack.shards[: len(self.first_samples(split)) - 1]
        ]

    def _loaded(self, split: str, result: ReadResult, global_size: int) -> Loaded:
        num_samples = len(result.targets)
        self._damaged[split].update(result.damaged.tolist())
        if num_samples:
            inputs, targets = torch.from_numpy(result.inputs), torch.from_numpy(result.targets)
        else:
            dtype = getattr(torch, self._preparation.dtype)
            inputs = torch.zeros(1, *self.shape.inputs, dtype=dtype)
            per_sample = (self.shape.targets_per_sample,) if self.shape.is_text else ()
            targets = torch.full((1, *per_sample), IGNORED)
        return Loaded(inputs, targets, num_samples, global_size, len(result.damaged))


def _first_so_many(option: str, wanted: int | None, there: int) -> int:
    if wanted is not None and not 1 <= wanted <= there:
        raise UserError(f"{option} must be 1 to {there} for this data, not {wanted}")
    return wanted or there
