"""Packing of an origin's samples into a folder, atomically and resumably."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from phalanx.data.packed.check_index import check_fields, check_layout
from phalanx.data.packed.index import INDEX, Field, Layout, PackIndex
from phalanx.data.packed.index_file import read_index, splits_of
from phalanx.data.packed.shard_files import sample_bytes
from phalanx.data.packed.splits import write_splits
from phalanx.data.packed.writer import PackWriter, hidden_folder, sync_folder
from phalanx.data.packing.check_finite import check_finite
from phalanx.data.packing.origin import Origin
from phalanx.data.packing.split import Numbers, split
from phalanx.errors import UserError
from phalanx.records.files import DECODE_ERRORS, write_atomically

REQUEST = "request.json"
READ_BYTES = 16 * 2**20
MAX_READ_SAMPLES = 4096
_SAMPLES_OF_UNKNOWN_SIZE = 256

OnProgress = Callable[[str, int, int], None]
"""(split, samples done, samples in all)"""


@dataclass(frozen=True, kw_only=True)
class PackingOptions:
    """Options for packing."""

    layout: Layout | None = None
    """None: npy where samples are arrays of one shape, else tar."""
    shard_mb: float = 256.0
    validation: float = 0.1
    """Share of the samples, where the data itself sets none aside."""
    seed: int = 0
    overwrite: bool = False
    """Replace the pack that is there, once the new one is whole."""

    def __post_init__(self) -> None:
        if not self.shard_mb > 0:
            raise UserError(f"--shard-mb must be positive, not {self.shard_mb}")
        if not 0 <= self.validation < 1:
            raise UserError(f"--validation must be from 0 to below 1, not {self.validation}")
        if self.seed < 0:
            raise UserError(f"--seed must not be negative, not {self.seed}")


class PackRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Identity of an unfinished pack: only the same request may resume it."""

    text: str
    fingerprint: str
    layout: Layout
    shard_bytes: int
    seed: int
    validation: float
    fields: list[Field]
    classes: list[str]


def pack(
    origin: Origin, target: Path, options: PackingOptions, on_progress: OnProgress = lambda *_: None
) -> Mapping[str, PackIndex]:
    """Write `target` with its splits; goes on where an earlier call with the same arguments ended.

    Returns: the index of each split.
    Raises: UserError when `target` is taken, the disk is full, or a sample cannot be read. What was
            there before stays; whole shards are kept in a hidden folder beside `target`.
    """
    request = _request(origin, options)
    with _refusals(target):
        _check_target(target, options.overwrite)
        hidden = hidden_folder(target)
        _check_hidden(hidden, request, options.overwrite)
        _check_room(hidden, origin)
        write_atomically(hidden / REQUEST, msgspec.json.encode(request))
        parts = split(
            origin.chunks,
            seed=options.seed,
            share=options.validation,
            validation=origin.validation,
        )
        indices = {
            name: _pack_split(origin, numbers, hidden / name, request, on_progress)
            for name, numbers in parts._asdict().items()
            if len(numbers)
        }
        write_splits(hidden, {name: index.num_samples for name, index in indices.items()})
        _publish(hidden, target)
    return indices


def _request(origin: Origin, options: PackingOptions) -> PackRequest:
    layout = options.layout
    if layout is None:
        are_equal = all(sample_bytes(field) is not None for field in origin.fields)
        layout = "npy" if are_equal else "tar"
    check_fields(origin.fields)
    check_layout(layout, origin.fields)
    return PackRequest(
        text=origin.text,
        fingerprint=origin.fingerprint,
        layout=layout,
        shard_bytes=int(options.shard_mb * 1e6),
        seed=options.seed,
        validation=options.validation,
        fields=origin.fields,
        classes=origin.classes,
    )


def _pack_split(
    origin: Origin, numbers: Numbers, folder: Path, request: PackRequest, on_progress: OnProgress
) -> PackIndex:
    if (folder / INDEX).is_file():
        on_progress(folder.name, len(numbers), len(numbers))
        return read_index(folder)
    with PackWriter(
        folder,
        layout=request.layout,
        fields=request.fields,
        shard_bytes=request.shard_bytes,
        source=f"{request.text}; seed {request.seed}",
        classes=request.classes,
        measure=["inputs"] if folder.name == "train" else [],
    ) as writer:
        on_progress(folder.name, writer.num_samples, len(numbers))
        for part in _pieces(numbers[writer.num_samples :], request.fields):
            samples = origin.read(part)
            check_finite(samples, part, origin.text)
            if isinstance(samples, list):
                for sample in samples:
                    writer.add(sample)
            else:
                writer.add_rows(samples)
            on_progress(folder.name, writer.num_samples, len(numbers))
    return read_index(folder)


def _pieces(numbers: Numbers, fields: list[Field]) -> Iterator[Numbers]:
    """Yield the samples in reads of some megabytes."""
    sizes = [sample_bytes(field) for field in fields]
    known = sum(size or 0 for size in sizes)
    step = max(1, min(MAX_READ_SAMPLES, READ_BYTES // max(1, known)))
    if None in sizes:
        step = _SAMPLES_OF_UNKNOWN_SIZE
    for start in range(0, len(numbers), step):
        yield numbers[start : start + step]


def _check_target(target: Path, overwrite: bool) -> None:
    if not target.exists():
        return
    is_pack = target.is_dir() and bool(splits_of(target))
    if is_pack and not overwrite:
        raise UserError(
            f"{target} is a pack already: name another folder, or replace it with --overwrite"
        )
    if not is_pack and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target} is there and no pack: name another folder")
    if target.is_mount():
        raise UserError(f"{target} is a mount point: name a folder in it")


def _check_hidden(hidden: Path, request: PackRequest, overwrite: bool) -> None:
    """Go on with an unfinished pack, or put it away."""
    if not hidden.exists():
        return
    try:
        begun = msgspec.json.decode((hidden / REQUEST).read_bytes(), type=PackRequest)
    except (FileNotFoundError, *DECODE_ERRORS):
        begun = None
    if begun == request:
        return
    if begun is not None and not overwrite:
        raise UserError(
            f"{hidden} holds part of a pack of {begun.text}, which has changed or was packed with "
            "other options\nrepeat that command to go on, or begin anew with --overwrite"
        )
    shutil.rmtree(hidden)


def _check_room(hidden: Path, origin: Origin) -> None:
    """Raises: UserError when the disk has too little room, as far as that can be told before."""
    sizes = [sample_bytes(field) for field in origin.fields]
    needed = sum(map(len, origin.chunks)) * sum(size or 0 for size in sizes)
    if hidden.exists():
        needed -= sum(file.stat().st_size for file in hidden.rglob("*") if file.is_file())
    place = next(folder for folder in hidden.parents if folder.exists())
    free = shutil.disk_usage(place).free
    if needed > free:
        raise UserError(
            f"{place} has {free / 1e6:,.1f} MB free, and {needed / 1e6:,.1f} MB are needed: "
            "name a folder on another disk"
        )


def _publish(hidden: Path, target: Path) -> None:
    """The pack takes its name; the one that had it goes."""
    replaced = target.parent / f".{target.name}.replaced"
    shutil.rmtree(replaced, ignore_errors=True)
    if target.exists():
        target.rename(replaced)
    sync_folder(hidden)
    hidden.rename(target)
    sync_folder(target.absolute().parent)
    (target / REQUEST).unlink(missing_ok=True)
    shutil.rmtree(replaced, ignore_errors=True)


@contextmanager
def _refusals(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(f"the disk of {target} is full: make room, and run it again") from error
        raise UserError(
            f"{error.filename or target} cannot be written: {error.strerror}"
        ) from error
