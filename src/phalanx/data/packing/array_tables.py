"""Origins held in memory: pairs of IDX files, the data sets that Phalanx knows by name, and files
of NumPy, whose content is checked before it is believed; nothing is unpickled."""

from __future__ import annotations

import io
import math
import re
import zipfile
from pathlib import Path
from tokenize import TokenError
from typing import Any, get_args

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from phalanx.data.datasets.arrays import read_arrays
from phalanx.data.datasets.catalog import Name, resolve
from phalanx.data.datasets.idx import read_idx
from phalanx.data.packing.table import INPUTS, TARGETS, ArrayTable, fingerprint_of, reading
from phalanx.data.unpacked import check_unpacked
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
            raise UserError(f"{parts[there]} has no counterpart: no file of {other} beside it")
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
    arrays = read_arrays(choice)
    inputs, targets = (np.concatenate(parts) for parts in (arrays[::2], arrays[1::2]))
    return ArrayTable(
        choice.name if choice.folder is None else f"{choice.name} in {choice.folder}",
        {
            INPUTS: inputs.reshape(len(inputs), *choice.shape.inputs),
            TARGETS: targets.astype(np.int64),
        },
        classes=[str(i) for i in range(choice.shape.num_classes)],
        fingerprint=f"{len(inputs)} samples",
        num_train=len(arrays.train_inputs),
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
        raise UserError(f"{path}: its arrays need equal numbers of rows: {listed}")
    return ArrayTable(str(path), arrays, fingerprint=fingerprint_of([path]))


_READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def parse_npy(content: bytes, where: str) -> NDArray[Any]:
    """Return the array, read-only, in the memory of `content`. Nothing is unpickled.

    Raises: UserError that begins with `where`, when it is no array, holds objects, or its header
            names another size than follows.
    """
    file = io.BytesIO(content)
    with reading(f"{where} is not an array"):
        try:
            version = npy.read_magic(file)
            if version not in _READERS:
                raise ValueError(f"version {version[0]}.{version[1]} is not that of a plain array")
            shape, is_fortran, dtype = _READERS[version](file)
        except (SyntaxError, TokenError, TypeError, KeyError, EOFError, RecursionError) as error:
            raise ValueError(f"its header cannot be read: {error}") from error
        if dtype.hasobject:
            raise ValueError("Object arrays are pickles, which can run any program")
        expected, found = math.prod(shape) * dtype.itemsize, len(content) - file.tell()
        if expected != found or dtype.itemsize == 0:
            raise ValueError(
                f"its header says {dtype} of {shape}, {expected:,} bytes, and {found:,} follow"
            )
        flat: NDArray[Any] = np.frombuffer(content, dtype, offset=file.tell())
        return flat.reshape(shape, order="F" if is_fortran else "C")


def parse_npz(content: bytes, where: str) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file `.npz` by name. Raises: UserError that begins with `where`."""
    with (
        reading(f"{where} is not an .npz file"),
        zipfile.ZipFile(io.BytesIO(content)) as archive,
    ):
        check_unpacked(sum(member.file_size for member in archive.infolist()), len(content), where)
        return {
            name.removesuffix(".npy"): parse_npy(archive.read(name), f"{where}, {name}")
            for name in archive.namelist()
        }


def map_npy(path: Path) -> NDArray[Any]:
    """Return the array of a file, mapped into memory, read-only.

    Raises: UserError when it is damaged or holds objects.
    """
    with reading(f"{path} is not an array"):
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return array
