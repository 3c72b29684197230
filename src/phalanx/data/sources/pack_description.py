"""Description of packed data for a model, from its index alone, before ranks start. No torch."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from phalanx.data.packed.index import INDEX, Field, PackIndex
from phalanx.data.packed.index_file import has_index, read_index
from phalanx.data.packed.pack import Pack
from phalanx.data.reading.pack_reader import INPUTS, TARGETS
from phalanx.errors import UserError
from phalanx.models.options import DataShape

TRAIN, VALIDATION = "train", "validation"


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
        """One sentence for the user."""
        return (
            f"{self.name}: {self.num_train:,} samples for training and {self.num_validation:,} for "
            f"validation in {self.num_shards} shards, {self.num_bytes / 1e6:,.1f} MB, from "
            f"{self.folder}"
        )


def describe(folder: Path) -> PackDescription:
    """Describe a pack, from its indices.

    Raises: UserError when it is no pack, lacks a split, or holds data that no model here reads.
    """
    if not folder.is_dir():
        raise UserError(f"--data {folder}: there is no such folder")
    for split in (TRAIN, VALIDATION):
        if not has_index(folder / split):
            raise UserError(
                f"--data {folder}: there is no {split}/{INDEX} in it: `phalanx data pack` makes "
                f"a folder with {TRAIN} and {VALIDATION}"
            )
    train, validation = read_index(folder / TRAIN), read_index(folder / VALIDATION)
    for field in (INPUTS, TARGETS):
        one, other = (_field(index, folder, field) for index in (train, validation))
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            raise UserError(
                f"--data {folder}: {field} are {_format(one)} for training and {_format(other)} "
                "for validation: pack both alike"
            )
    shape = _shape(train, folder)
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


def _shape(index: PackIndex, folder: Path) -> DataShape:
    inputs, targets = (_field(index, folder, name) for name in (INPUTS, TARGETS))
    assert inputs.shape is not None and targets.shape is not None, "checked by _field"
    sizes, kind = tuple(inputs.shape), np.dtype(targets.dtype).kind
    is_text = np.dtype(inputs.dtype).kind in "iu" and len(sizes) == 1
    is_class = kind in "iub" and (not targets.shape or (is_text and targets.shape == inputs.shape))
    if kind not in "iubf":
        raise UserError(
            f"--data {folder}: targets are {_format(targets)}: a loss learns from numbers"
        )
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


def _field(index: PackIndex, folder: Path, name: str) -> Field:
    for field in index.fields:
        if field.name == name:
            if field.shape is None:
                raise UserError(
                    f"--data {folder}: {name} differ in shape from sample to sample: pack them "
                    "with --size, so that they make a batch"
                )
            return field
    known = ", ".join(field.name for field in index.fields)
    raise UserError(f"--data {folder}: its samples have {known}, but no {name}")


def _format(field: Field) -> str:
    size = " × ".join(map(str, field.shape or [])) or "single numbers"
    return f"{size} of {field.dtype}"
