"""Detection of the source to pack, by its name or its files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from phalanx.data.columns import is_dataset
from phalanx.data.packing.array_tables import (
    NAMES,
    idx_files,
    read_idx_folder,
    read_known,
    read_npy,
)
from phalanx.data.packing.column_files import read_arrow, read_parquet
from phalanx.data.packing.column_table import (
    ColumnTable,
    class_names,
    dataset_groups,
    table_groups,
)
from phalanx.data.packing.csv_file import CsvFile
from phalanx.data.packing.function import FunctionSamples, data_of, is_function, samples_in
from phalanx.data.packing.hdf5_file import Hdf5File
from phalanx.data.packing.image_folder import ImageFolder, has_images
from phalanx.data.packing.json_lines import JsonLines
from phalanx.data.packing.lmdb_file import LmdbFile
from phalanx.data.packing.options import Kind, OriginOptions
from phalanx.data.packing.origin import Origin
from phalanx.data.packing.table import SkippedItems, SourceTable, reported
from phalanx.data.packing.tar_files import TarFiles
from phalanx.data.packing.tfrecord_files import TfRecords
from phalanx.errors import UserError
from phalanx.records.regular_file import check_regular, readable

_KIND_OF_ENDING: dict[str, Kind] = {
    **dict.fromkeys((".csv", ".tsv", ".csv.gz", ".tsv.gz"), "csv"),
    **dict.fromkeys((".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz"), "jsonl"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".arrow", ".feather", ".ipc"), "arrow"),
    **dict.fromkeys((".h5", ".hdf5", ".hdf"), "hdf5"),
    **dict.fromkeys((".npy", ".npz"), "npy"),
    ".tar": "tar",
    **dict.fromkeys((".tfrecord", ".tfrecords", ".tfrecord.gz", ".tfrecords.gz"), "tfrecord"),
    **dict.fromkeys((".lmdb", ".mdb"), "lmdb"),
}
_NUMBERED = re.compile(r"\.tfrecords?-\d+-of-\d+(\.gz)?$")
"""Ending of one of several TFRecord files."""
_OF_XARRAY = re.compile(
    r".*\.(nc4?|netcdf|cdf|zarr|zarr\.zip)|zarr\.json|\.z(group|array|metadata)"
)
"""Names of NetCDF files, and of Zarr stores and what is in them."""

_OF_FILES: dict[Kind, Callable[[list[Path]], SourceTable]] = {
    "tar": TarFiles,
    "parquet": read_parquet,
    "arrow": read_arrow,
    "tfrecord": TfRecords,
    "jsonl": JsonLines,
}
"""Kinds of which a folder may hold several files."""

WITH_IMAGES: tuple[Kind, ...] = ("images", "parquet", "arrow", "tar", "tfrecord", "lmdb")
WITHOUT_PARTS: tuple[Kind, ...] = ("images", "idx")


def find_origin(source: str, options: OriginOptions) -> Origin:
    """source: the name of a known data set, a file or a folder, or FILE.py:NAME.

    Raises: UserError when there is nothing, it is of no kind that is known, or is damaged.
    """
    path = Path(source)
    if options.kind == "function" or (options.kind is None and is_function(source)):
        return Origin(_table_of_program(source, options), options)
    if source in NAMES and options.kind is None and not path.exists():
        _refuse_unused(source, options, has_parts=False)
        return Origin(read_known(source), options)
    if "\0" in source or not path.exists():
        raise UserError(
            f"there is no {source}: name a file, a folder, or one of {', '.join(NAMES)}"
        )
    if not path.is_dir():
        with readable(path):
            check_regular(path)
    kind = options.kind or _kind_of(path)
    _refuse_unused(
        kind, options, has_parts=kind not in WITHOUT_PARTS, has_images=kind in WITH_IMAGES
    )
    return Origin(_table(path, kind, options), options)


def _table(path: Path, kind: Kind, options: OriginOptions) -> SourceTable:
    match kind:
        case "images":
            return ImageFolder(_folder(path, kind))
        case "idx":
            return read_idx_folder(_folder(path, kind))
        case "csv":
            return CsvFile(_file(path, kind), options)
        case "hdf5":
            return Hdf5File(_file(path, kind))
        case "npy":
            return read_npy(_file(path, kind))
        case "lmdb":
            return LmdbFile(path)
        case _:
            table = _OF_FILES[kind](_files(path, kind))
            table.skipped += _rest(path, kind)
            return table


def _table_of_program(source: str, options: OriginOptions) -> SourceTable:
    """Return what a function makes: a table of Arrow, a data set of Hugging Face, or samples."""
    name, made = data_of(source)
    is_table = is_dataset(made) or hasattr(made, "__arrow_c_stream__")
    _refuse_unused("function", options, has_parts=is_table, has_images=True)
    if is_dataset(made):
        groups, schema = dataset_groups(made, source), made.features.arrow_schema
        fingerprint = str(made._fingerprint)
    elif hasattr(made, "__arrow_c_stream__"):
        table = _arrow(made)
        groups, schema = table_groups(table, source), table.schema
        fingerprint = f"{table.num_rows} rows of {table.nbytes} bytes"
    else:
        return FunctionSamples(source, samples_in(made, name))
    return ColumnTable(source, groups, fingerprint=fingerprint, class_names=class_names(schema))


def _arrow(data: Any) -> Any:
    import pyarrow as pa  # optional dependency

    return pa.table(data)


def _refuse_unused(
    kind: str, options: OriginOptions, *, has_parts: bool, has_images: bool = False
) -> None:
    """Raises: UserError for what was asked for and would not be done."""
    if not has_images and (options.size or options.decode):
        option = "--size" if options.size else "--decode"
        raise UserError(f"{option} is of images in folders, tables and records, not of {kind}")
    if kind != "csv" and (options.separator is not None or options.decimal != "."):
        option = "--decimal" if options.separator is None else "--separator"
        raise UserError(f"{option} is of CSV, not of {kind}")
    if options.classes is not None and not has_parts and kind != "idx":
        why = "are known" if kind != "function" else "are what its targets say"
        raise UserError(f"--classes {options.classes}: the classes of {kind} {why}")
    if not has_parts and (options.inputs or options.target):
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
    if kind is not None:
        return kind
    names = [path.name, *(inner.name for inner in (path.iterdir() if path.is_dir() else ()))]
    if any(_OF_XARRAY.fullmatch(name.lower()) for name in names):
        raise UserError(
            f"{path} is NetCDF or Zarr: open it with xarray in a function that yields samples, and "
            "pack that, my_data.py:samples\ndocs/data_packed.md has the lines"
        )
    raise UserError(
        f"{path} is of no known kind: give folders of images, IDX files, CSV, JSON lines, Parquet, "
        "Arrow, HDF5, npy, TFRecord, LMDB or tar files, my_data.py:samples, or say which it is "
        "with --kind"
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


def _rest(path: Path, kind: Kind) -> list[SkippedItems]:
    """Return what else lies in a folder of files."""
    rest = SkippedItems(f"hidden or of another ending than .{kind}")
    if path.is_dir():
        for other in _content(path, kind):
            if not _is_of(other, kind):
                rest.add(other)
    return reported([rest])


def _file(path: Path, kind: Kind) -> Path:
    if not path.is_file():
        raise UserError(f"{path} is a folder: name a file of kind {kind}")
    return path


def _folder(path: Path, kind: Kind) -> Path:
    if not path.is_dir():
        raise UserError(f"{path} is a file: name a folder of kind {kind}")
    return path
