"""Packing of an origin's samples into a folder, atomically and resumably."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from phalanx.data.packed.hidden_folder import HiddenFolder, hidden_folder, writing
from phalanx.data.packed.index import INDEX, PackIndex, sample_bytes
from phalanx.data.packed.index_file import check_fields, read_index
from phalanx.data.packed.shard_writers import Part, Rows
from phalanx.data.packed.writer import Arguments, PackWriter
from phalanx.data.packing.origin import Origin
from phalanx.data.packing.table import Numbers
from phalanx.errors import UserError
from phalanx.records.configuration import check_positive

READ_BYTES = 16 * 2**20
MAX_READ_SAMPLES = 4096
_SAMPLES_OF_UNKNOWN_SIZE = 256

OnProgress = Callable[[str, int, int], None]
"""(split, samples done, samples in all)"""


@dataclass(frozen=True, kw_only=True)
class PackingOptions:
    """Options for packing."""

    shard_mb: float = 256.0
    """Size of a shard in megabytes."""
    validation: float = 0.1
    """Share of the samples for validation, if the data has no validation split."""
    seed: int = 0
    """Seed of the order of the packed samples and of the validation split."""
    overwrite: bool = False
    """Replace an existing pack once the new one is complete."""

    def __post_init__(self) -> None:
        check_positive(self, "shard_mb")
        if not 0 <= self.validation < 1:
            raise UserError(f"--validation must be from 0 to below 1, not {self.validation}")
        if self.seed < 0:
            raise UserError(f"--seed must not be negative, not {self.seed}")


class PackRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Identity of an unfinished pack: only the same request may resume it."""

    fingerprint: str
    validation: float
    arguments: Arguments  # arguments of each split's writer

    @property
    def source(self) -> str:
        return self.arguments.source


def pack(
    origin: Origin, target: Path, options: PackingOptions, on_progress: OnProgress = lambda *_: None
) -> Mapping[str, PackIndex]:
    """Write `target` with its splits; goes on where an earlier call with the same arguments ended.

    Returns: the index of each split.
    Raises: UserError when `target` is taken, the disk is full, or a sample cannot be read. What was
            there before stays; whole shards are kept in a hidden folder beside `target`.
    """
    parts = split(
        origin.chunks, seed=options.seed, share=options.validation, validation=origin.validation
    )
    chosen = {name: numbers for name, numbers in parts._asdict().items() if len(numbers)}
    request = _request(origin, options, {name: len(numbers) for name, numbers in chosen.items()})
    with writing(target):
        _check_room(hidden_folder(target), origin)
        hidden = HiddenFolder(target, request, source=request.source, overwrite=options.overwrite)
        try:
            indices = {
                name: _pack_split(origin, numbers, hidden.path / name, request, on_progress)
                for name, numbers in chosen.items()
            }
            hidden.publish()
        finally:
            hidden.close()
    return indices


def _request(origin: Origin, options: PackingOptions, splits: Mapping[str, int]) -> PackRequest:
    check_fields(origin.fields)
    arguments = Arguments(
        fields=origin.fields,
        shard_bytes=int(options.shard_mb * 1e6),
        source=f"{origin.text}; seed {options.seed}",
        classes=origin.classes,
        splits=dict(splits),
    )
    return PackRequest(
        fingerprint=origin.fingerprint, validation=options.validation, arguments=arguments
    )


def _pack_split(
    origin: Origin, numbers: Numbers, folder: Path, request: PackRequest, on_progress: OnProgress
) -> PackIndex:
    if (folder / INDEX).is_file():
        on_progress(folder.name, len(numbers), len(numbers))
        return read_index(folder)
    with PackWriter(
        folder,
        **msgspec.structs.asdict(request.arguments),
        measure=[field.name for field in origin.fields if field.name != "targets"]
        if folder.name == "train"
        else [],
    ) as writer:
        on_progress(folder.name, writer.num_samples, len(numbers))
        for part in _pieces(numbers[writer.num_samples :], origin):
            rows = origin.read(part)
            check_finite(rows, part, origin.text)
            writer.add_rows(rows)
            on_progress(folder.name, writer.num_samples, len(numbers))
    return read_index(folder)


def _pieces(numbers: Numbers, origin: Origin) -> Iterator[Numbers]:
    """Yield the samples in reads of some megabytes."""
    sizes = [sample_bytes(field) for field in origin.fields]
    known = max(origin.max_sample_bytes, sum(size or 0 for size in sizes))
    step = max(1, min(MAX_READ_SAMPLES, READ_BYTES // max(1, known)))
    if None in sizes:
        step = min(step, _SAMPLES_OF_UNKNOWN_SIZE)
    for start in range(0, len(numbers), step):
        yield numbers[start : start + step]


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
            f"{place} has {free / 1e6:,.1f} MB free, and {needed / 1e6:,.1f} MB are needed: use a "
            "folder on another disk"
        )


class Splits(NamedTuple):
    """The samples of each, in the order in which they are packed."""

    train: Numbers
    validation: Numbers


def split(
    chunks: Sequence[range], *, seed: int, share: float, validation: Numbers | None = None
) -> Splits:
    """Every sample once, shuffled: chunks among each other, and samples within their chunk, so that
    each chunk is read once.

    share: of samples for validation, chosen at random all over the data; at least one, and never
    all, where it is above 0. validation: these instead.
    """
    random = np.random.Generator(np.random.PCG64(seed))
    order = _shuffled(chunks, random)
    is_validation = np.zeros(len(order), bool)
    if validation is not None:
        is_validation[validation] = True
    elif share > 0 and len(order) > 1:
        count = min(max(1, round(share * len(order))), len(order) - 1)
        is_validation[random.permutation(len(order))[:count]] = True
    return Splits(order[~is_validation[order]], order[is_validation[order]])


def _shuffled(chunks: Sequence[range], random: np.random.Generator) -> Numbers:
    parts = [
        chunks[i].start + random.permutation(len(chunks[i]))
        for i in random.permutation(len(chunks))
    ]
    return np.concatenate([np.empty(0, np.int64), *parts]).astype(np.int64)


def check_finite(rows: Rows, numbers: Numbers, source: str) -> None:
    """numbers: of the samples in their source, for the message.

    Raises: UserError naming the first sample with a field that holds NaN or infinity.
    """
    for name, parts in rows.items():
        if isinstance(parts, np.ndarray) and _is_finite(parts):
            continue
        row = next((row for row, part in enumerate(parts) if not _is_finite(part)), None)
        if row is not None:
            raise UserError(
                f"{source}: the {name} of sample {numbers[row]}, counted from 0, are not all "
                "finite numbers\nfix that sample, or leave it out"
            )


def _is_finite(part: Part) -> bool:
    if isinstance(part, bytes) or part.dtype.kind not in "fc":
        return True
    return bool(np.isfinite(part).all())
