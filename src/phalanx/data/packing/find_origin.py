"""Detection of the source to pack, by its name or its files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from phalanx.data.packing.array_origins import NAMES, idx_files, read_idx_folder, read_known
from phalanx.data.packing.csv_file import read_csv
from phalanx.data.packing.function import FunctionSamples, is_function
from phalanx.data.packing.hdf5_file import Hdf5File
from phalanx.data.packing.image_folder import ImageFolder, has_images
from phalanx.data.packing.json_lines import JsonLines
from phalanx.data.packing.lmdb_file import LmdbFile
from phalanx.data.packing.origin import Kind, Origin, OriginOptions, SkippedItems, reported
from phalanx.data.packing.parquet_rows import read_parquet
from phalanx.data.packing.tar_files import TarFiles
from phalanx.data.packing.tar_records import TarRecords
from phalanx.data.packing.tfrecord_files import TfRecords
from phalanx.errors import UserError
from phalanx.records.regular_file import check_regular, readable

_KIND_OF_ENDING: dict[str, Kind] = {
    **dict.fromkeys((".csv", ".tsv", ".csv.gz", ".tsv.gz"), "csv"),
    **dict.fromkeys((".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz"), "jsonl"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".h5", ".hdf5", ".hdf"), "hdf5"),
    ".tar": "tar",
    **dict.fromkeys((".tfrecord", ".tfrecords", ".tfrecord.gz", ".tfrecords.gz"), "tfrecord"),
    **dict.fromkeys((".lmdb", ".mdb"), "lmdb"),
}
_NUMBERED = re.compile(r"\.tfrecords?-\d+-of-\d+(\.gz)?$")
"""Ending of one of several TFRecord files."""

_OF_XARRAY = re.compile(r".*\.(nc4?|netcdf|cdf|zarr|zarr\.zip)")
"""Names of NetCDF files and Zarr stores."""

_OF_FILES: dict[Kind, Callable[[Sequence[Path], OriginOptions], Origin]] = {
    "tar": lambda paths, given: (TarRecords if len(given.inputs) > 1 else TarFiles)(paths, given),
    "parquet": read_parquet,
    "tfrecord": TfRecords,
    "jsonl": JsonLines,
}
"""Kinds of which a folder may hold several files."""

WITH_IMAGES: tuple[Kind, ...] = ("images", "parquet", "tar", "tfrecord", "lmdb", "function")
WITH_PARTS: tuple[Kind, ...] = ("csv", "hdf5", "lmdb", *_OF_FILES)


def find_origin(source: str, options: OriginOptions) -> Origin:
    """source: the name of a known data set, a file or a folder.

    Raises: UserError when there is nothing, it is of no kind that is known, or is damaged.
    """
    path = Path(source)
    if options.kind == "function" or (options.kind is None and is_function(source)):
        _refuse_unused("function", options)
        return FunctionSamples(source, options)
    if source in NAMES and options.kind is None and not path.exists():
        _refuse_unused(source, options)
        return read_known(source)
    if "\0" in source or not path.exists():
        raise UserError(
            f"there is no {source}: name a file, a folder, or one of {', '.join(NAMES)}"
        )
    if not path.is_dir():
        with readable(path):
            check_regular(path)
    kind = options.kind or _kind_of(path)
    _refuse_unused(kind, options)
    match kind:
        case "images":
            return ImageFolder(_folder(path, kind), options)
        case "idx":
            return read_idx_folder(_folder(path, kind), options)
        case "csv":
            return read_csv(_file(path, kind), options)
        case "hdf5":
            return Hdf5File(_file(path, kind), options)
        case "lmdb":
            return LmdbFile(path, options)
        case _:
            return _named_rest(path, kind, _OF_FILES[kind](_files(path, kind), options))


def _refuse_unused(kind: str, options: OriginOptions) -> None:
    """Raises: UserError for what was asked for and would not be done."""
    if kind not in WITH_IMAGES and (options.size or options.decode):
        option = "--size" if options.size else "--decode"
        raise UserError(f"{option} is of images in folders, Parquet and tar, not of {kind}")
    if kind != "csv" and (options.separator is not None or options.decimal != "."):
        option = "--decimal" if options.separator is None else "--separator"
        raise UserError(f"{option} is of CSV, not of {kind}")
    if kind not in (*WITH_PARTS, "idx") and options.classes is not None:
        why = "are known" if kind != "function" else "are what its targets say"
        raise UserError(f"--classes {options.classes}: the classes of {kind} {why}")
    if kind not in WITH_PARTS and (options.inputs or options.target):
        option = f"--inputs {options.inputs[0]}" if options.inputs else f"--target {options.target}"
        raise UserError(f"{option}: {kind} has no columns or parts to choose from")


def _kind_of(path: Path) -> Kind:
    if path.is_file():
        kind = _kind_of_name(path.name)
    else:
        kind = "lmdb" if (path / "data.mdb").exists() else "idx" if idx_files(path) else None
        kind = kind or next((k for k in _OF_FILES if _of_kind(path, k)), None)
        if kind is None and has_images(path):
            kind = "images"
    if kind is None and any(map(_of_xarray, (path, *(path.iterdir() if path.is_dir() else ())))):
        raise UserError(
            f"{path} is NetCDF or Zarr: open it with xarray in a function that yields samples, and "
            "pack that, my_data.py:samples\ndocs/data_packed.md has the lines"
        )
    if kind is None:
        raise UserError(
            f"{path} is of no known kind: give folders of images, IDX files, CSV, JSON lines, "
            "Parquet, HDF5, TFRecord, LMDB or tar files, my_data.py:samples, or say which it is "
            "with --kind"
        )
    return kind


def _of_xarray(path: Path) -> bool:
    return _OF_XARRAY.fullmatch(path.name.lower()) is not None or path.name in (
        *("zarr.json", ".zgroup", ".zarray", ".zmetadata"),
    )


def _kind_of_name(name: str) -> Kind | None:
    lower = name.lower()
    if _NUMBERED.search(lower):
        return "tfrecord"
    return next((kind for end, kind in _KIND_OF_ENDING.items() if lower.endswith(end)), None)


def _files(path: Path, kind: Kind) -> list[Path]:
    if path.is_file():
        return [path]
    found = _of_kind(path, kind)
    if not found:
        raise UserError(f"{path} has no files *.{kind}")
    for file in found:
        with readable(file):
            check_regular(file)
    return found


def _of_kind(folder: Path, kind: Kind) -> list[Path]:
    """The files of a folder with an ending of this kind, in capitals too, but no hidden ones."""
    return [path for path in _content(folder, kind) if _is_of(path, kind)]


def _is_of(path: Path, kind: Kind) -> bool:
    return _kind_of_name(path.name) == kind and not path.name.startswith(".")


def _content(folder: Path, kind: Kind) -> Iterator[Path]:
    """Yield what lies in a folder, by name; of Parquet also what lies in folders KEY=VALUE."""
    for path in sorted(folder.iterdir()):
        if kind == "parquet" and "=" in path.name and path.is_dir():
            yield from _content(path, kind)
        else:
            yield path


def _named_rest(path: Path, kind: Kind, origin: Origin) -> Origin:
    """Add to `origin.skipped` what else lies in the folder it was found in."""
    rest = SkippedItems(f"hidden or of another ending than .{kind}")
    if path.is_dir():
        for other in _content(path, kind):
            if not _is_of(other, kind):
                rest.add(other)
    origin.skipped += reported([rest])
    return origin


def _file(path: Path, kind: Kind) -> Path:
    if not path.is_file():
        raise UserError(f"{path} is a folder: name a file of kind {kind}")
    return path


def _folder(path: Path, kind: Kind) -> Path:
    if not path.is_dir():
        raise UserError(f"{path} is a file: name a folder of kind {kind}")
    return path
