"""Detection of the source to pack, by its name or its files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from phalanx.data.columns import is_dataset
from phalanx.data.packing.array_tables import (
    NAMES,
    idx_files,
    read_idx_folder,
    read_known,
    read_npy,
)
from phalanx.data.packing.column_table import read_arrow, read_parquet, table_of_program
from phalanx.data.packing.csv_file import CsvFile
from phalanx.data.packing.function import FunctionSamples, data_of, is_function, samples_in
from phalanx.data.packing.hdf5_file import Hdf5File
from phalanx.data.packing.image_folder import has_images, read_image_folder
from phalanx.data.packing.lmdb_file import LmdbFile
from phalanx.data.packing.options import Kind, OriginOptions
from phalanx.data.packing.origin import Origin
from phalanx.data.packing.records import JsonLines
from phalanx.data.packing.table import SourceTable
from phalanx.data.packing.tar_files import TarFiles
from phalanx.data.packing.tfrecord_files import TfRecords
from phalanx.errors import UserError
from phalanx.records.regular_file import check_regular, readable

_NUMBERED = re.compile(r"\.tfrecords?-\d+-of-\d+(\.gz)?$")
"""Ending of one of several TFRecord files."""
_OF_XARRAY = re.compile(
    r".*\.(nc4?|netcdf|cdf|zarr|zarr\.zip)|zarr\.json|\.z(group|array|metadata)"
)
"""Names of NetCDF files, and of Zarr stores and what is in them."""


class Format(NamedTuple):
    """Kind of source on the disk: its names, and the table that opens it."""

    open: Callable[..., SourceTable]
    takes: Literal["file", "folder", "files"]
    """files: a list of them, all of one kind in a folder."""
    endings: tuple[str, ...] = ()
    has_parts: bool = True
    """True if there are inputs and targets to choose from."""
    has_images: bool = False
    """True if it may hold images."""


FORMATS: dict[Kind, Format] = {
    "tar": Format(TarFiles, "files", (".tar",), has_images=True),
    "parquet": Format(read_parquet, "files", (".parquet", ".pq"), has_images=True),
    "arrow": Format(read_arrow, "files", (".arrow", ".feather", ".ipc"), has_images=True),
    "tfrecord": Format(
        TfRecords, "files",
        (".tfrecord", ".tfrecords", ".tfrecord.gz", ".tfrecords.gz"), has_images=True,
    ),
    "jsonl": Format(JsonLines, "files", (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")),
    "csv": Format(CsvFile, "file", (".csv", ".tsv", ".csv.gz", ".tsv.gz")),
    "hdf5": Format(Hdf5File, "file", (".h5", ".hdf5", ".hdf")),
    "npy": Format(read_npy, "file", (".npy", ".npz")),
    "lmdb": Format(LmdbFile, "file", (".lmdb", ".mdb"), has_images=True),
    "images": Format(read_image_folder, "folder", has_parts=False, has_images=True),
    "idx": Format(read_idx_folder, "folder", has_parts=False),
}  # fmt: skip


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
        raise UserError(f"there is no {source}: use a file, a folder, or one of {', '.join(NAMES)}")
    if not path.is_dir():
        with readable(path):
            check_regular(path)
    kind = options.kind or _kind_of(path)
    form = FORMATS[kind]
    _refuse_unused(kind, options, has_parts=form.has_parts, has_images=form.has_images)
    return Origin(_table(path, kind, options), options)


def _table(path: Path, kind: Kind, options: OriginOptions) -> SourceTable:
    form = FORMATS[kind]
    if form.takes == "files":
        table = form.open(_files(path, kind))
        for other in _content(path, kind) if path.is_dir() else ():
            if not _is_of(other, kind):
                table.skipped.add(f"hidden or not ending in .{kind}", other)
        return table
    if path.is_dir() != (form.takes == "folder") and kind != "lmdb":
        is_what = "a folder" if path.is_dir() else "a file"
        raise UserError(f"{path} is {is_what}: use a {form.takes} of kind {kind}")
    return CsvFile(path, options) if kind == "csv" else form.open(path)


def _table_of_program(source: str, options: OriginOptions) -> SourceTable:
    """Return what a function makes: a table of Arrow, a data set of Hugging Face, or samples."""
    name, made = data_of(source)
    is_table = is_dataset(made) or hasattr(made, "__arrow_c_stream__")
    _refuse_unused("function", options, has_parts=is_table, has_images=True)
    if not is_table:
        return FunctionSamples(source, samples_in(made, name))
    if is_dataset(made):
        rows, schema = made.with_format("arrow"), made.features.arrow_schema
        return table_of_program(rows, schema, source, str(made._fingerprint))
    import pyarrow as pa  # optional dependency

    table = pa.table(made)
    fingerprint = f"{table.num_rows} rows of {table.nbytes} bytes"
    return table_of_program(table, table.schema, source, fingerprint)


def _refuse_unused(
    kind: str, options: OriginOptions, *, has_parts: bool, has_images: bool = False
) -> None:
    """Raises: UserError for what was asked for and would not be done."""
    if not has_images and (options.size or options.decode):
        option = "--size" if options.size else "--decode"
        raise UserError(f"{option} is for images in folders, tables and records, not for {kind}")
    if kind != "csv" and (options.separator is not None or options.decimal != "."):
        option = "--decimal" if options.separator is None else "--separator"
        raise UserError(f"{option} is for CSV, not for {kind}")
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
        several = (k for k, form in FORMATS.items() if form.takes == "files")
        kind = kind or next((k for k in several if _of_kind(path, k)), None)
        if kind is None and has_images(path):
            kind = "images"
    if kind is not None:
        return kind
    names = [path.name, *(inner.name for inner in (path.iterdir() if path.is_dir() else ()))]
    if any(_OF_XARRAY.fullmatch(name.lower()) for name in names):
        raise UserError(
            f"{path} is NetCDF or Zarr: open it with xarray in a function that yields samples, and "
            "pack that, my_data.py:samples\ndocs/data.md has the lines"
        )
    raise UserError(
        f"{path} is of no known kind: give folders of images, IDX files, CSV, JSON lines, Parquet, "
        "Arrow, HDF5, npy, TFRecord, LMDB or tar files, my_data.py:samples, or choose the kind "
        "with --kind"
    )


def _kind_of_name(name: str) -> Kind | None:
    lower = name.lower()
    if _NUMBERED.search(lower):
        return "tfrecord"
    return next((kind for kind, form in FORMATS.items() if lower.endswith(form.endings)), None)


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
