"""Detection of the source to pack, by its name or its files."""

from __future__ import annotations

from pathlib import Path

from phalanx.data.packing.array_origins import NAMES, idx_files, read_idx_folder, read_known
from phalanx.data.packing.csv_file import read_csv
from phalanx.data.packing.function import FunctionSamples, is_function
from phalanx.data.packing.hdf5_file import Hdf5File
from phalanx.data.packing.image_folder import ImageFolder, has_images
from phalanx.data.packing.origin import Kind, Origin, OriginOptions, SkippedItems, reported
from phalanx.data.packing.parquet_files import ParquetFiles
from phalanx.data.packing.tar_files import TarFiles
from phalanx.errors import UserError
from phalanx.records.regular_file import check_regular, readable

_KIND_OF_ENDING: dict[str, Kind] = {
    **dict.fromkeys((".csv", ".tsv", ".csv.gz", ".tsv.gz"), "csv"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".h5", ".hdf5", ".hdf"), "hdf5"),
    ".tar": "tar",
}

WITH_IMAGES: tuple[Kind, ...] = ("images", "parquet", "tar", "function")
WITH_PARTS: tuple[Kind, ...] = ("csv", "parquet", "hdf5", "tar")


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
        case "parquet":
            return _named_rest(path, kind, ParquetFiles(_files(path, kind), options))
        case "hdf5":
            return Hdf5File(_file(path, kind), options)
        case "tar":
            return _named_rest(path, kind, TarFiles(_files(path, kind), options))
        case "function":
            raise AssertionError("opened above")


def _refuse_unused(kind: str, options: OriginOptions) -> None:
    """Raises: UserError for what was asked for and would not be done."""
    if kind not in WITH_IMAGES and (options.size or options.decode):
        option = "--size" if options.size else "--decode"
        raise UserError(f"{option} is of images in folders, Parquet and tar, not of {kind}")
    if kind not in (*WITH_PARTS, "idx") and options.classes is not None:
        why = "are known" if kind != "function" else "are what its targets say"
        raise UserError(f"--classes {options.classes}: the classes of {kind} {why}")
    if kind not in WITH_PARTS and (options.inputs or options.target):
        option = f"--inputs {options.inputs[0]}" if options.inputs else f"--target {options.target}"
        raise UserError(f"{option}: {kind} has no columns or parts to choose from")


def _kind_of(path: Path) -> Kind:
    if path.is_file():
        for ending, kind in _KIND_OF_ENDING.items():
            if path.name.lower().endswith(ending):
                return kind
    elif idx_files(path):
        return "idx"
    elif _of_kind(path, "tar"):
        return "tar"
    elif _of_kind(path, "parquet"):
        return "parquet"
    elif has_images(path):
        return "images"
    raise UserError(
        f"{path} is of no known kind: give folders of images, IDX files, CSV, Parquet, HDF5 or "
        "tar files, or say which it is with --kind"
    )


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
    endings = tuple(ending for ending, other in _KIND_OF_ENDING.items() if other == kind)
    return sorted(
        path
        for path in folder.iterdir()
        if path.name.lower().endswith(endings) and not path.name.startswith(".")
    )


def _named_rest(path: Path, kind: Kind, origin: Origin) -> Origin:
    """Add to `origin.skipped` what else lies in the folder it was found in."""
    rest = SkippedItems(f"hidden or of another ending than .{kind}")
    if path.is_dir():
        for other in sorted({*path.iterdir()}.difference(_of_kind(path, kind))):
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
