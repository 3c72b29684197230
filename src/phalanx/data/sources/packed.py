"""Packs for training: the options of reading one, and its description for a model, from its index
alone, before ranks start. No torch."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from phalanx.data.packed.index import INDEX, Field, PackIndex
from phalanx.data.packed.index_file import has_index, read_index
from phalanx.data.packed.pack import Pack
from phalanx.data.reading.pack_reader import INPUTS, TARGETS
from phalanx.data.reading.prefetch import ReaderKind
from phalanx.errors import UserError
from phalanx.models.options import DataShape

TRAIN, VALIDATION = "train", "validation"


@dataclass(frozen=True)
class Packed:
    """Packed data for training: images decoded and normalised, tokens and classes int64.

    Example::

        images = phalanx.Packed("images.pack", readers=4, cache_mb=200, augment=True)
        run = phalanx.start(network, its_optimizer, images, batch_size=256, epochs=1)
        for batch in run:
            run.backward(criterion(run.model(batch.inputs), batch.targets))
        run.evaluate(lambda model, batch: criterion(model(batch[0]), batch[1]), images)

    Raises:
        UserError: For a value that its field does not take.
    """

    folder: Path | str
    """Folder that `phalanx data pack` made, with `train` and `validation`."""
    readers: int = field(default=2, kw_only=True)
    """Number that read ahead on each rank; 0: the rank itself reads when it needs a batch."""
    reader_kind: ReaderKind = field(default="threads", kw_only=True)
    """Kind of readers."""
    prefetch: int = field(default=4, kw_only=True)
    """Micro-batches that may be ready before they are needed, on each rank."""
    cache_mb: float = field(default=0.0, kw_only=True)
    """Megabytes of samples that each rank keeps in memory once it has read them."""
    stage: Path | str | None = field(default=None, kw_only=True)
    """Folder on the node's local disk to which one rank per node copies shards first."""
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
                raise UserError(f"Packed({name}={value!r}): it is not a whole number from {first}")
        for name, values in {
            "reader_kind": ("threads", "processes"), "damaged": ("stop", "skip"),
            "dtype": ("float32", "float64"),
        }.items():  # fmt: skip
            if getattr(self, name) not in values:
                value = getattr(self, name)
                raise UserError(f"Packed({name}={value!r}): it is not one of {', '.join(values)}")
        for name in ("cache_mb", "stage_mb"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, (int, float)) or value < 0):
                raise UserError(f"Packed({name}={value!r}): it is not a number from 0")
        if self.cache_mb and self.reader_kind == "processes":
            raise UserError(
                f'Packed(cache_mb={self.cache_mb:g}, reader_kind="processes"): each process would '
                "have a separate cache; use threads"
            )
        if self.stage is None and (self.stage_mb is not None or self.keep_staged):
            given = "keep_staged" if self.keep_staged else "stage_mb"
            raise UserError(f"Packed({given}=…) needs a stage: also give stage=, its folder")

    def describe(self) -> PackDescription:
        """Return what the pack's index says.

        Raises:
            UserError: If there is no such pack, or its samples are no images and `augment` is set.
        """
        described = describe(Path(self.folder), "Packed:")
        if self.augment and not described.shape.is_image:
            raise UserError("Packed(augment=True) is for images: leave it out")
        return described

    def num_samples(self, described: PackDescription, split: str) -> int:
        """Return how many samples of a split are read.

        Args:
            described: Result of `describe`.
            split: `train` or `validation`.

        Raises:
            UserError: If the pack has fewer than `train_samples` or `validation_samples` asks for.
        """
        is_train = split == TRAIN
        wanted = self.train_samples if is_train else self.validation_samples
        there = described.num_train if is_train else described.num_validation
        if wanted is not None and wanted > there:
            option = "--train-samples" if is_train else "--validation-samples"
            raise UserError(f"{option} must be 1 to {there} for this data, not {wanted}")
        return wanted or there


@dataclass(frozen=True, kw_only=True)
class PackDescription:
    """Description of a folder made by `phalanx data pack`."""

    name: str
    folder: Path
    fingerprint: str
    """Hash of its index, and so of all its bytes."""
    shape: DataShape
    num_train: int
    num_validation: int
    num_shards: int
    num_bytes: int

    @property
    def reason(self) -> str:
        """Name, samples, shards, size and folder, in one sentence."""
        return (
            f"{self.name}: {self.num_train:,} samples for training and {self.num_validation:,} for "
            f"validation in {self.num_shards} shards, {self.num_bytes / 1e6:,.1f} MB, from "
            f"{self.folder}"
        )


def describe(folder: Path, given_by: str = "--data") -> PackDescription:
    """Describe a pack, from its indices. given_by: begins errors.

    Raises: UserError when it is no pack, lacks a split, or holds data that no model here reads.
    """
    title = f"{given_by} {folder}"
    if not folder.is_dir():
        raise UserError(f"{title}: there is no such folder")
    for split in (TRAIN, VALIDATION):
        if not has_index(folder / split):
            raise UserError(
                f"{title}: there is no {split}/{INDEX} in it: `phalanx data pack` makes "
                f"a folder with {TRAIN} and {VALIDATION}"
            )
    train, validation = read_index(folder / TRAIN), read_index(folder / VALIDATION)
    for name in (INPUTS, TARGETS):
        one, other = (_field(index, title, name) for index in (train, validation))
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            raise UserError(
                f"{title}: {name} are {_format(one)} for training and {_format(other)} for "
                "validation: pack both in the same way"
            )
    shape = _shape(train, folder, title)
    return PackDescription(
        name=folder.resolve().name,
        folder=folder,
        fingerprint=hashlib.sha256((folder / TRAIN / INDEX).read_bytes()).hexdigest()[:16],
        shape=shape,
        num_train=train.num_samples,
        num_validation=validation.num_samples,
        num_shards=len(train.shards),
        num_bytes=sum(file.bytes for shard in train.shards for file in shard.files),
    )


def _shape(index: PackIndex, folder: Path, title: str) -> DataShape:
    inputs, targets = (_field(index, title, name) for name in (INPUTS, TARGETS))
    assert inputs.shape is not None and targets.shape is not None, "checked by _field"
    sizes, kind = tuple(inputs.shape), np.dtype(targets.dtype).kind
    is_text = np.dtype(inputs.dtype).kind in "iu" and len(sizes) == 1
    is_class = kind in "iub" and (not targets.shape or (is_text and targets.shape == inputs.shape))
    if kind not in "iubf":
        raise UserError(f"{title}: targets are {_format(targets)}: a loss needs numbers")
    if not is_class:
        return DataShape(
            inputs=sizes, num_classes=0, targets=tuple(targets.shape), has_fractions=kind == "f"
        )
    if not targets.shape and len(sizes) < 3:
        # Rows of numbers are images of one line, which the mlp reads directly.
        sizes = (1,) * (3 - len(sizes)) + sizes
    return DataShape(inputs=sizes, num_classes=_num_classes(index, folder))


def _num_classes(index: PackIndex, folder: Path) -> int:
    """Return the number of class names, or, without names, the largest target plus one."""
    if index.classes:
        return len(index.classes)
    largest = 0
    for split in (TRAIN, VALIDATION):
        pack = Pack(folder / split, damaged="skip")
        targets = pack.read(TARGETS, np.arange(pack.num_samples))
        largest = max(largest, int(targets.max()))
        pack.close()
    return largest + 1


def _field(index: PackIndex, title: str, name: str) -> Field:
    for found in index.fields:
        if found.name == name:
            if found.shape is None:
                raise UserError(
                    f"{title}: {name} differ in shape from sample to sample: pack them with "
                    "--size, so that they form a batch"
                )
            return found
    known = ", ".join(found.name for found in index.fields)
    raise UserError(f"{title}: its samples have {known}, but no {name}")


def _format(field: Field) -> str:
    size = " × ".join(map(str, field.shape or [])) or "single numbers"
    return f"{size} of {field.dtype}"
