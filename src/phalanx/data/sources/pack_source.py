"""Packed data that are read for training, prefetched in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from phalanx.data.packed.pack import Pack
from phalanx.data.reading.pack_reader import (
    Preparation,
    ReadRequest,
    ReadResult,
    SplitReader,
)
from phalanx.data.reading.prefetch import Readers, trace_reads
from phalanx.data.samples import PartialBatch
from phalanx.data.sources.packed import TRAIN, VALIDATION, PackDescription, Packed
from phalanx.data.staging.stage_schedule import StageUnit
from phalanx.data.staging.stager import Stager
from phalanx.records.spans import SpanRecorder

MAX_LISTED = 10
"""Damaged samples listed in a notice."""


class PackSource:
    """Both splits of a pack, which readers prepare ahead in bounded memory."""

    def __init__(
        self,
        packed: Packed,
        described: PackDescription,
        preparation: Preparation,
        *,
        timeout_s: float = 300.0,
        staged: Path | None = None,
        spans: SpanRecorder | None = None,
    ) -> None:
        """staged: a folder for staged shards, with a folder for each split. spans: traces reads of
        threads; processes are not traced.

        Raises: UserError when a shard is missing or cut short, or there are fewer samples.
        """
        self._depth, self._timeout_s = packed.prefetch, timeout_s
        self._packs = {
            split: Pack(described.folder / split, damaged=packed.damaged)
            for split in (TRAIN, VALIDATION)
        }
        self._numbers = {split: packed.num_samples(described, split) for split in self._packs}
        splits = {
            split: SplitReader(
                pack,
                preparation,
                cache_bytes=int(packed.cache_mb * 1e6) if split == TRAIN else 0,
                staged=staged / split if staged else None,
            )
            for split, pack in self._packs.items()
        }
        fetch: Callable[[ReadRequest], ReadResult] = partial(_read_split, splits)
        if spans is not None and (packed.reader_kind == "threads" or not packed.readers):
            fetch = trace_reads(fetch, spans)
        self._readers = Readers(fetch, packed.readers, packed.reader_kind)
        self.position = (0, 0)
        """Epoch, and the number of its samples read so far, over all ranks."""
        self.stager: Stager | None = None
        """Stager of this node, if this rank runs it; closed with the source."""
        self._damaged: dict[str, set[int]] = {TRAIN: set(), VALIDATION: set()}
        """Numbers of the damaged samples found so far."""
        self._num_reported: dict[str, int] = {TRAIN: 0, VALIDATION: 0}

    def read(self, split: str, indices: Sequence[Tensor], epoch: int) -> Iterator[PartialBatch]:
        """Yield inputs and targets, (n, …) tensors, of each of `indices`, as augmented in an epoch,
        without those that are damaged."""
        work = (ReadRequest(split, chosen.numpy(), epoch) for chosen in indices)
        results = self._readers.results(work, depth=self._depth, timeout_s=self._timeout_s)
        for chosen, result in zip(indices, results, strict=True):
            self._damaged[split].update(result.damaged.tolist())
            inputs, targets = torch.from_numpy(result.inputs), torch.from_numpy(result.targets)
            number = len(targets)
            if not number:
                inputs = inputs.new_zeros(1, *inputs.shape[1:])
                targets = targets.new_zeros(1, *targets.shape[1:])
            yield PartialBatch((inputs, targets), number, len(chosen) - number)

    def notices(self) -> list[str]:
        """Return notices of staging and of damaged samples found since the last call."""
        notices = self.stager.notices() if self.stager is not None else []
        for split, damaged in self._damaged.items():
            if len(damaged) > self._num_reported[split]:
                self._num_reported[split] = len(damaged)
                listed = ", ".join(map(str, sorted(damaged)[:MAX_LISTED]))
                more = ", …" if len(damaged) > MAX_LISTED else ""
                notices.append(
                    f"{self._packs[split].folder}: skipped {len(damaged)} damaged so far: sample "
                    f"{listed}{more}"
                )
        return notices

    def close(self) -> None:
        self._readers.close()
        for pack in self._packs.values():
            pack.close()
        if self.stager is not None:
            self.stager.close()

    def first_samples(self, split: str) -> list[int]:
        """Return the number of the first sample of each shard that is read, then the number of
        samples."""
        number = self._numbers[split]
        starts = self._packs[split].first_samples.tolist()
        return [start for start in starts if start < number] + [number]

    def stage_units(self) -> list[StageUnit]:
        """Return the shards that are read: for training, then for validation."""
        return [
            StageUnit(split=split, files=tuple(shard.files))
            for split, pack in self._packs.items()
            for shard in pack.shards[: len(self.first_samples(split)) - 1]
        ]


def _read_split(splits: Mapping[str, SplitReader], request: ReadRequest) -> ReadResult:
    return splits[request.split].read(request)
