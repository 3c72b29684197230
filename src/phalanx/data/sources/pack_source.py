"""Source of batches from packed data, prefetched in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

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
from phalanx.data.reading.prefetch import ReaderKind, Readers, make_readers, trace_reads
from phalanx.data.samples import Samples
from phalanx.data.sources.pack_description import TRAIN, VALIDATION, PackDescription
from phalanx.data.sources.source import LoadedBatch, Source
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


class PreparedSamples:
    """`Samples` of one split of a pack as a model takes them: pairs of inputs and targets, without
    those that are damaged."""

    def __init__(
        self,
        split: str,
        num_samples: int,
        read: Callable[[Iterator[ReadRequest]], Iterator[ReadResult]],
        epoch: int = 0,
    ) -> None:
        """read: reads ahead. epoch: by which samples are augmented."""
        self._split, self._num_samples, self._read, self._epoch = split, num_samples, read, epoch
        self.damaged: set[int] = set()
        """Numbers of the damaged samples found so far."""

    def __len__(self) -> int:
        return self._num_samples

    def at(self, epoch: int) -> PreparedSamples:
        """Return the samples as they are in an epoch."""
        samples = PreparedSamples(self._split, self._num_samples, self._read, epoch)
        samples.damaged = self.damaged
        return samples

    def batches(self, indices: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the samples of each of `indices` that are not damaged."""
        work = (ReadRequest(self._split, chosen.numpy(), self._epoch) for chosen in indices)
        for result in self._read(work):
            self.damaged.update(result.damaged.tolist())
            yield torch.from_numpy(result.inputs), torch.from_numpy(result.targets)


class PackSource(Source):
    """A `Source` of packed data, prefetched in bounded memory."""

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
        self._options = options
        self._packs = {
            split: Pack(description.folder / split, damaged=options.damaged)
            for split in (TRAIN, VALIDATION)
        }
        numbers = {
            TRAIN: _checked_count("--train-samples", train_samples, description.num_train),
            VALIDATION: _checked_count(
                "--validation-samples", validation_samples, description.num_validation
            ),
        }
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
        self._samples = {s: PreparedSamples(s, n, self._read) for s, n in numbers.items()}
        super().__init__(
            self._samples[TRAIN],
            self._samples[VALIDATION],
            name=description.name,
            reason=description.reason,
            shape=description.shape,
        )
        self.skips_damaged = options.damaged == "skip"
        self.order = f"{self.num_train} samples of {self.name} {description.fingerprint} " + (
            "at random"
            if options.shuffle_shards is None
            else f"in windows of {options.shuffle_shards} shards"
        )
        self.stager: Stager | None = None
        """Stager of this node, if this rank runs it; closed with the source."""
        self.copies = ExitStack()
        """Copies of the pack on nodes that lack it; removed with the source, collectively."""
        self.opening_notice = ""
        self._num_reported: dict[str, int] = {TRAIN: 0, VALIDATION: 0}

    def read(self, split: str, indices: Sequence[Tensor], epoch: int) -> Iterator[LoadedBatch]:
        """Yield the samples of each of `indices`, of an epoch, and a padding one where all of them
        are damaged."""
        batches = self._samples[split].at(epoch).batches(indices)
        for chosen, (inputs, targets) in zip(indices, batches, strict=True):
            yield self._load(inputs, targets, len(chosen), len(targets))

    def notices(self) -> list[str]:
        """Return notices of staging and of damaged samples found since the last call."""
        notices = self.stager.notices() if self.stager is not None else []
        notices += filter(None, [self.opening_notice])
        self.opening_notice = ""
        for split, samples in self._samples.items():
            if len(samples.damaged) > self._num_reported[split]:
                self._num_reported[split] = len(samples.damaged)
                listed = ", ".join(map(str, sorted(samples.damaged)[:MAX_LISTED]))
                more = ", …" if len(samples.damaged) > MAX_LISTED else ""
                notices.append(
                    f"{self._packs[split].folder}: {len(samples.damaged)} damaged so far, and left "
                    f"out: sample {listed}{more}"
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

    def _train_samples(self, epoch: int) -> Samples:
        return self._samples[TRAIN].at(epoch)

    def _epoch_order(self, seed: int, epoch: int) -> Tensor | None:
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


def _checked_count(option: str, wanted: int | None, there: int) -> int:
    if wanted is not None and not 1 <= wanted <= there:
        raise UserError(f"{option} must be 1 to {there} for this data, not {wanted}")
    return wanted or there
