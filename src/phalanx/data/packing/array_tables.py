"""Origins held in memory: pairs of IDX files, and the data sets that Phalanx knows by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from phalanx.data.datasets.catalog import Name, resolve
from phalanx.data.datasets.idx import read_idx
from phalanx.data.datasets.images import read_images
from phalanx.data.datasets.text import read_text
from phalanx.data.packing.npy_content import map_npy, parse_npz
from phalanx.data.packing.table import INPUTS, TARGETS, ArrayTable, fingerprint_of
from phalanx.errors import UserError

_NAME = re.compile(r"(?P<split>.*?)-?(?P<part>images|labels)[-.]idx(?P<dims>\d)-ubyte(\.gz)?")
_FOR_VALIDATION = ("t10k", "test", "validation", "valid", "val")


def idx_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name))


def read_idx_folder(folder: Path) -> ArrayTable:
    """All pairs of a folder; those named t10k, test or validation are for validation.

    Raises: UserError when a file has no partner, or does not fit it, or is damaged.
    """
    pairs = _pairs(folder)
    train = [split for split in pairs if not split.endswith(_FOR_VALIDATION)]
    held_out = [split for split in pairs if split not in train]
    loaded = [_load(pairs[split]) for split in (*train, *held_out)]
    num_train = sum(len(labels) for _, labels in loaded[: len(train)])
    return ArrayTable(
        f"IDX files in {folder}",
        {
            INPUTS: np.concatenate([images for images, _ in loaded]),
            TARGETS: np.concatenate([labels for _, labels in loaded]),
        },
        fingerprint=fingerprint_of(idx_files(folder)),
        num_train=num_train if train and held_out else None,
    )


def _pairs(folder: Path) -> dict[str, dict[str, Path]]:
    """Return the files by split, then `images` and `labels`; the unzipped one where both exist."""
    pairs: dict[str, dict[str, Path]] = {}
    for path in reversed(idx_files(folder)):
        match = _NAME.fullmatch(path.name)
        assert match is not None, "idx_files looked"
        pairs.setdefault(match["split"], {})[match["part"]] = path
    for parts in pairs.values():
        if len(parts) < 2:
            (there,) = parts
            other = "labels" if there == "images" else "images"
            raise UserError(f"{parts[there]} has no partner: there is no file of {other} beside it")
    return dict(sorted(pairs.items()))


def _load(parts: dict[str, Path]) -> tuple[NDArray[Any], NDArray[Any]]:
    """(n, 1, height, width) and (n,)."""
    images, labels = read_idx(parts["images"]), read_idx(parts["labels"], num_dims=1)
    if len(images) != len(labels):
        raise UserError(
            f"{parts['images']} has {len(images)} images, {parts['labels']} {len(labels)} labels"
        )
    return (images[:, None] if images.ndim == 3 else images), labels


NAMES: tuple[str, ...] = get_args(Name)


def read_known(name: str, data_root: Path | None = None) -> ArrayTable:
    """Images (channels, height, width) and their classes; of text tokens and those that follow.

    Raises: UserError when files are asked for and missing, or damaged.
    """
    choice = resolve(name, data_root)
    arrays = read_text() if choice.name == "text" else read_images(choice)
    train_inputs, train_targets, validation_inputs, validation_targets = arrays
    inputs = np.concatenate([train_inputs, validation_inputs])
    targets = np.concatenate([train_targets, validation_targets]).astype(np.int64)
    return ArrayTable(
        choice.name if choice.folder is None else f"{choice.name} in {choice.folder}",
        {INPUTS: inputs.reshape(len(inputs), *choice.shape.inputs), TARGETS: targets},
        classes=[str(i) for i in range(choice.shape.num_classes)],
        fingerprint=f"{len(inputs)} samples",
        num_train=len(train_inputs),
    )


def read_npy(path: Path) -> ArrayTable:
    """Return the array of a file `.npy`, mapped, or those of a file `.npz`, in memory.

    Raises: UserError when they are damaged, of objects, or not of equally many rows.
    """
    is_zip = path.suffix.lower() == ".npz"
    arrays = parse_npz(path.read_bytes(), str(path)) if is_zip else {INPUTS: map_npy(path)}
    lengths = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if len({*lengths.values()}) != 1 or not all(lengths.values()):
        listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise UserError(f"{path}: arrays of equally many rows are wanted, and it has {listed}")
    return ArrayTable(str(path), arrays, fingerprint=fingerprint_of([path]))
