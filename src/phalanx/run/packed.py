"""Packs that are read for training: prepared samples, by readers, with a cache and a stage."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor

from phalanx.data.packed.pack import Pack
from phalanx.data.reading.pack_reader import INPUTS, Preparation
from phalanx.data.sources.pack_description import TRAIN, VALIDATION, PackDescription, describe
from phalanx.data.sources.pack_source import PackSource, ReaderOptions
from phalanx.data.staging.stage_folder import StageFolder, stage_path
from phalanx.data.staging.stage_plan import ReadSchedule
from phalanx.data.staging.stager import Stager
from phalanx.data.windowed_shuffle import windowed_order
from phalanx.errors import UserError
from phalanx.parallel.run_group import RunGroup
from phalanx.parallel.strategy import Strategy
from phalanx.run.order import EpochOrder, ShuffledOrder

MEASURED_SAMPLES = 1000
"""Samples whose mean and deviation are taken if the pack names none."""


@dataclass(frozen=True)
class Packed:
    """A folder of `phalanx data pack` whose samples are prepared for training: images decoded and
    normalised, tokens and classes int64.

        images = phalanx.Packed("images.pack", readers=4, cache_mb=200, augment=True)
        run = phalanx.start(network, its_optimizer, images, batch_size=256, epochs=1)
        for batch in run:
            run.backward(criterion(run.model(batch.inputs), batch.targets))
        run.evaluate(lambda model, batch: criterion(model(batch[0]), batch[1]), images)

    Raises:
        UserError: For a value that is none of its option's.
    """

    folder: Path | str
    readers: int = field(default=2, kw_only=True)
    """Number that read ahead on each rank; 0: the rank itself reads when it needs a batch."""
    reader_kind: Literal["threads", "processes"] = field(default="threads", kw_only=True)
    """Kind of readers."""
    prefetch: int = field(default=4, kw_only=True)
    """Micro-batches that may be ready before they are needed, on each rank."""
    cache_mb: float = field(default=0.0, kw_only=True)
    """Megabytes of samples that each rank keeps in memory once it has read them."""
    stage: Path | str | None = field(default=None, kw_only=True)
    """Folder on the node's own disk to which one rank of each node brings shards first."""
    stage_mb: float | None = field(default=None, kw_only=True)
    """Megabytes that it may hold; shards that are needed last go. None: no limit."""
    keep_staged: bool = field(default=False, kw_only=True)
    """Leave what was brought there for the next run."""
    shuffle_shards: int | None = field(default=None, kw_only=True)
    """Number of shards to shuffle within, so that reading stays local; None: all samples."""
    augment: bool = field(default=False, kw_only=True)
    """Shift and mirror training images at random, by (seed, epoch, sample)."""
    damaged: Literal["stop", "skip"] = field(default="stop", kw_only=True)
    """Policy for a corrupt sample: stop the run, or leave it out and count it."""
    train_samples: int | None = field(default=None, kw_only=True)
    """Number of training samples, the first ones; None: all."""
    validation_samples: int | None = field(default=None, kw_only=True)
    """Number of validation samples, the first ones; None: all."""
    dtype: str = field(default="float32", kw_only=True)
    """Type of prepared inputs and of targets that are quantities."""

    def __post_init__(self) -> None:
        least = {"readers": 0, "prefetch": 1, "shuffle_shards": 1, "train_samples": 1}
        for name, first in {**least, "validation_samples": 1}.items():
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < first):
                raise UserError(f"Packed({name}={value!r}): it is no whole number from {first}")
        for name, values in {
            "reader_kind": ("threads", "processes"), "damaged": ("stop", "skip"),
            "dtype": ("float32", "float64"),
        }.items():  # fmt: skip
            if getattr(self, name) not in values:
                value = getattr(self, name)
                raise UserError(f"Packed({name}={value!r}): it is none of {', '.join(values)}")
        for name in ("cache_mb", "stage_mb"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, (int, float)) or value < 0):
                raise UserError(f"Packed({name}={value!r}): it is no number from 0")
        if self.cache_mb and self.reader_kind == "processes":
            raise UserError(
                f'Packed(cache_mb={self.cache_mb:g}, reader_kind="processes"): every process would '
                "keep samples of its own; take threads"
            )
        if self.stage is None and (self.stage_mb is not None or self.keep_staged):
            given = "keep_staged" if self.keep_staged else "stage_mb"
            raise UserError(f"Packed({given}=…) is for a stage: give stage=, the folder, too")

    def describe(self) -> PackDescription:
        """Return what the pack's index says. Raises: UserError where there is no such pack."""
        try:
            described = describe(Path(self.folder))
        except UserError as error:
            raise UserError(str(error).replace("--data ", "Packed: ")) from error
        if self.augment and not described.shape.is_image:
            raise UserError("Packed(augment=True) shifts and mirrors images: leave it out")
        return described

    def reading(self, timeout_s: float) -> ReaderOptions:
        """Return the options of the readers."""
        return ReaderOptions(
            readers=self.readers,
            kind=self.reader_kind,
            depth=self.prefetch,
            cache_bytes=int(self.cache_mb * 1e6),
            damaged=self.damaged,
            timeout_s=timeout_s,
        )


class PackedSamples:
    """Samples of one split of a pack, prepared; opened once the ranks have met."""

    def __init__(self, packed: Packed) -> None:
        """Raises: UserError where there is no such pack."""
        self.packed, self.described = packed, packed.describe()
        self._source: PackSource | None = None
        self._split = TRAIN

    def __len__(self) -> int:
        counts = {
            TRAIN: (self.packed.train_samples, self.described.num_train),
            VALIDATION: (self.packed.validation_samples, self.described.num_validation),
        }
        wanted, there = counts[self._split]
        return min(wanted or there, there)

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
        self._source = open_pack(
            self.packed, self.described, group, seed=seed, epochs=epochs, timeout_s=timeout_s
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

    def of(self, epoch: int) -> EpochOrder:
        """Return the order of an epoch."""
        _, bounds = super().of(epoch)
        window = self._samples.packed.shuffle_shards or 1
        order = windowed_order(self._samples.first_samples(), window, self._seed, epoch)
        return EpochOrder(order, bounds)


def check_damaged(samples: PackedSamples, strategy: Strategy) -> None:
    """Raise UserError where the ranks could not agree how many samples a batch has left."""
    wrong = ""
    if strategy.num_blocks is not None:
        wrong = "bitwise=True trains with every sample"
    elif strategy.makes_steps or not strategy.is_in_lockstep or not strategy.scales_gradients:
        wrong = f"{type(strategy).__name__} divides by the samples of a global batch beforehand"
    if samples.skips_damaged and wrong:
        raise UserError(
            f'Packed(damaged="skip"): {wrong}: leave damaged out, or take strategy="mpi"'
        )


def open_pack(
    packed: Packed,
    described: PackDescription,
    group: RunGroup,
    *,
    seed: int,
    epochs: int,
    timeout_s: float,
) -> PackSource:
    """Return a pack that is read for training. Collective."""
    path: Path | None = None
    if packed.stage is not None:
        run = group.share(f"{socket.gethostname()}-{os.getpid()}")
        path = stage_path(Path(packed.stage), described.fingerprint, run, group.node)
    source = PackSource(
        described,
        preparation(packed, described, group, seed=seed),
        packed.reading(timeout_s),
        train_samples=packed.train_samples,
        validation_samples=packed.validation_samples,
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
    return source


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
