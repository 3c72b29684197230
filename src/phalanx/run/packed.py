"""Packs that are read for training: prepared samples, by readers, with a cache and a stage."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from phalanx.data.packed.pack import Pack
from phalanx.data.reading.pack_reader import INPUTS, Preparation
from phalanx.data.sampler import windowed_order
from phalanx.data.sources.pack_source import PackSource
from phalanx.data.sources.packed import TRAIN, VALIDATION, PackDescription, Packed
from phalanx.data.staging.stage_folder import StageFolder, stage_path
from phalanx.data.staging.stage_schedule import ReadSchedule
from phalanx.data.staging.stager import Stager
from phalanx.errors import UserError
from phalanx.parallel.run_group import RunGroup
from phalanx.parallel.strategy import Strategy
from phalanx.run.order import ShuffledOrder

MEASURED_SAMPLES = 1000
"""Samples whose mean and deviation are taken if the pack names none."""


class PackedSamples:
    """Samples of one split of a pack, prepared; opened once the ranks have met."""

    def __init__(self, packed: Packed) -> None:
        """Raises: UserError where there is no such pack."""
        self.packed, self.described = packed, packed.describe()
        self._source: PackSource | None = None
        self._split = TRAIN

    def __len__(self) -> int:
        return self.packed.num_samples(self.described, self._split)

    @property
    def fingerprint(self) -> str:
        """Hash of the pack's index, and so of all its bytes."""
        return self.described.fingerprint

    @property
    def preparation(self) -> str:
        """Return what decides the samples and their order beside the pack, in words."""
        packed = self.packed
        words = ["augmented"] * packed.augment + ["without damaged samples"] * self.skips_damaged
        if packed.shuffle_shards is not None:
            words.append(f"in windows of {packed.shuffle_shards} shards")
        return ", ".join(words) or "plain"

    @property
    def skips_damaged(self) -> bool:
        """Return whether batches may have fewer samples than were asked for."""
        return self.packed.damaged == "skip"

    def open(self, group: RunGroup, *, seed: int, epochs: int, timeout_s: float) -> None:
        """Begin to read. Collective."""
        packed, described, path = self.packed, self.described, None
        if packed.stage is not None:
            run = group.share(f"{socket.gethostname()}-{os.getpid()}")
            path = stage_path(Path(packed.stage), described.fingerprint, run, group.node)
        self._source = source = PackSource(
            packed,
            described,
            preparation(packed, described, group, seed=seed),
            timeout_s=timeout_s,
            staged=path,
            spans=group.spans,
        )
        if path is not None and group.is_node_leader:
            schedule = ReadSchedule(
                first_samples=source.first_samples(TRAIN),
                num_validation_shards=len(source.first_samples(VALIDATION)) - 1,
                window=packed.shuffle_shards,
                seed=seed,
                epochs=epochs,
            )
            source.stager = Stager(
                described.folder,
                StageFolder(path, described.fingerprint, keep=packed.keep_staged),
                source.stage_units(),
                lambda: schedule.ahead(*source.position),
                max_bytes=None if packed.stage_mb is None else packed.stage_mb * 1e6,
                group=group.node_leaders(),
            )

    def validation(self) -> PackedSamples:
        """Return the samples for validation, read by the same readers."""
        other = PackedSamples(self.packed)
        other._split, other._source = VALIDATION, self._source
        return other

    def batches(self, indices: Iterable[Tensor]) -> Iterator[Any]:
        """Yield the samples of each of `indices`."""
        asked = list(indices)
        return self.batches_of(asked, 0, [0] * len(asked))

    def batches_of(
        self, indices: Sequence[Tensor], epoch: int, seen: Sequence[int]
    ) -> Iterator[Any]:
        """Yield the samples of each of `indices`, of an epoch. seen: its samples, over all ranks,
        before those."""
        assert self._source is not None, "opened"
        loaded = self._source.read(self._split, indices, epoch)
        for before, batch in zip(seen, loaded, strict=True):
            if self._split == TRAIN:
                self._source.position = epoch, before
            yield batch

    def order(self, batch_size: int, seed: int) -> ShuffledOrder:
        """Return the order of the samples in a run."""
        if self.packed.shuffle_shards is None:
            return ShuffledOrder(len(self), batch_size, seed)
        return WindowedOrder(self, batch_size, seed)

    def first_samples(self) -> list[int]:
        """Return the number of the first sample of each shard, then the number of samples."""
        assert self._source is not None, "opened"
        return self._source.first_samples(self._split)

    def notices(self) -> list[str]:
        """Return lines for the user since the last call."""
        return [] if self._source is None else self._source.notices()

    def close(self) -> None:
        """End the readers."""
        if self._source is not None:
            self._source.close()
            self._source = None


class WindowedOrder(ShuffledOrder):
    """All samples at random within windows of some shards, by (seed, epoch) alone."""

    def __init__(self, samples: PackedSamples, batch_size: int, seed: int) -> None:
        super().__init__(len(samples), batch_size, seed)
        self._samples = samples

    def _shuffled(self, epoch: int) -> Tensor:
        window = self._samples.packed.shuffle_shards or 1
        return windowed_order(self._samples.first_samples(), window, self._seed, epoch)


def check_damaged(samples: PackedSamples, strategy: Strategy) -> None:
    """Raise UserError where the ranks could not agree how many samples a batch has left."""
    wrong = ""
    if strategy.num_blocks is not None:
        wrong = "bitwise=True needs every sample"
    elif strategy.makes_steps or not strategy.is_in_lockstep or not strategy.scales_gradients:
        wrong = f"{type(strategy).__name__} needs the samples of a global batch in advance"
    if samples.skips_damaged and wrong:
        raise UserError(
            f'Packed(damaged="skip"): {wrong}: leave damaged out, or use strategy="mpi"'
        )


def preparation(
    packed: Packed, described: PackDescription, group: RunGroup, *, seed: int
) -> Preparation:
    """Return the preprocessing, the same on every rank: rank 0 measures what the pack does not
    name. Collective."""
    pack = Pack(described.folder / TRAIN, damaged=packed.damaged)
    own, means, deviations = pack.fields[INPUTS], None, None
    if not described.shape.is_text:
        means, deviations = own.mean, own.deviation
        is_image = len(described.shape.inputs) == 3
        if means is None and np.dtype(own.dtype) == np.uint8 and is_image:
            measured = measure(pack, described) if group.rank == 0 else ""
            means, deviations = (
                [float(word) for word in part.split()] for part in group.share(measured).split("/")
            )
    pack.close()
    return Preparation(
        shape=described.shape.inputs,
        dtype="int64" if described.shape.is_text else packed.dtype,
        means=means,
        deviations=deviations,
        packed_dims=len(own.shape or ()),
        num_classes=described.shape.num_classes,
        augment_seed=seed if packed.augment else None,
    )


def measure(pack: Pack, described: PackDescription) -> str:
    """Return mean and deviation of each channel, of samples spread over the pack, as words that
    parse to these very numbers on every rank."""
    number = min(MEASURED_SAMPLES, pack.num_samples)
    samples = np.arange(number) * pack.num_samples // number
    values = pack.read(INPUTS, samples)
    lost = pack.damaged_of(samples)
    pixels = values[~lost].reshape(-1, *described.shape.inputs)
    means, deviations = pixels.mean((0, 2, 3)), pixels.std((0, 2, 3))
    return "/".join(" ".join(map(repr, part.tolist())) for part in (means, deviations))
