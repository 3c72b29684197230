"""The data of a benchmark on disk: written atomically, reused, removed."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from phalanx.bench.io.formats import STORAGE, Indices, Rows, Shape
from phalanx.bench.io.scaling import Workload
from phalanx.errors import UserError
from phalanx.records.files import DECODE_ERRORS, write_atomically
from phalanx.records.io import Format, Generated, Storage
from phalanx.report.format import amount

SHARD_BYTES = 64 * 2**20
MIN_SHARDS = 4
NUMBER_BYTES = 8


def shape_of(workload: Workload, samples_per_file: int) -> Shape:
    """Return the shape of the data, with at least MIN_SHARDS shards if samples suffice."""
    most = samples_per_file if samples_per_file > 1 else workload.num_samples
    shard = min(most, SHARD_BYTES // workload.sample_bytes, -(-workload.num_samples // MIN_SHARDS))
    return Shape(
        num_samples=workload.num_samples,
        sample_bytes=workload.sample_bytes,
        shard_samples=max(1, shard),
    )


def sample_shards(shape: Shape, *, part: int) -> Iterator[Rows]:
    """Yield all samples in order, a whole shard of (n, sample_bytes) at a time. A sample is its
    index in 8 bytes and random bytes, which differ between parts."""
    for first in range(0, shape.num_samples, shape.shard_samples):
        n = min(shape.shard_samples, shape.num_samples - first)
        generator = np.random.Generator(np.random.SFC64([part, first]))
        rows = np.frombuffer(bytearray(generator.bytes(n * shape.sample_bytes)), np.uint8)
        rows = rows.reshape(n, shape.sample_bytes)
        numbers = np.arange(first, first + n, dtype="<u8")
        rows[:, :NUMBER_BYTES] = numbers.view(np.uint8).reshape(n, NUMBER_BYTES)
        yield rows


def wrong_samples(rows: Rows, indices: Indices) -> int:
    """Count the rows that are not the requested samples."""
    if len(rows) != len(indices):
        return len(indices)
    numbers = np.ascontiguousarray(rows[:, :NUMBER_BYTES]).view("<u8")[:, 0]
    return int((numbers != indices.astype(np.uint64)).sum())


RESERVE_BYTES = 2**30  # stays free on the disk
OVERHEAD = 1.05  # bytes of a format ÷ those of its samples
BLOCK_BYTES = 4096  # a file takes whole blocks
COMPLETE = "complete.json"
MAX_SINGLE_SYNCS = 64  # one sync of everything is faster for more files
REVISION = 2  # data of others is not reused


@dataclass(frozen=True, kw_only=True)
class DataLocation:
    """Folders of the data of one shape: one per format and part; each rank reads one part."""

    root: Path
    shape: Shape

    @property
    def folder(self) -> Path:
        shape = self.shape
        name = f"{shape.num_samples}x{shape.sample_bytes}-{shape.shard_samples}"
        return self.root / f"phalanx-io-{name}-r{REVISION}"

    def part(self, format_: Format, part: int) -> Path:
        return self.folder / format_ / f"part-{part}"


def max_part_bytes(format_: str, shape: Shape) -> int:
    """Return an upper bound of the bytes that one part takes on disk."""
    if format_ == "files":
        return shape.num_samples * (-(-shape.sample_bytes // BLOCK_BYTES) + 1) * BLOCK_BYTES
    tar_header = 1024 if format_ == "tar" else 0
    return int(shape.num_samples * (shape.sample_bytes + tar_header) * OVERHEAD) + 2**20


def check_room(location: DataLocation, missing: Sequence[Path]) -> int:
    """Return an upper bound of the bytes of these parts, which are still to be written.

    Raises: UserError when the disk has no room for them plus a reserve.
    """
    needed = sum(max_part_bytes(part.parent.name, location.shape) for part in missing)
    free = free_bytes(location.root)
    if needed and free < needed + RESERVE_BYTES:
        raise UserError(
            f"{location.root} has {amount(free)} free; the data takes {amount(needed)} and "
            f"{amount(RESERVE_BYTES)} must stay free: use fewer --formats, a smaller --data-bytes "
            "or another --data-dir"
        )
    return needed


def missing_parts(location: DataLocation, formats: Sequence[Format], parts: int) -> list[Path]:
    """Return the folders of parts that are still to be written."""
    wanted = (location.part(format_, part) for format_ in formats for part in range(parts))
    return [part for part in wanted if not is_complete(part)]


def free_bytes(folder: Path) -> int:
    """Return the free bytes of the disk that `folder` is on, or will be."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def generate(
    location: DataLocation,
    formats: Sequence[Format],
    parts: int,
    on_progress: Callable[[str, float], None],
) -> list[Generated]:
    """Write the missing data. on_progress: called with the format and the fraction done, 0 to 1.

    Raises: UserError when it cannot be written.
    """
    made = []
    for format_ in formats:
        began = time.monotonic()
        there = [is_complete(location.part(format_, part)) for part in range(parts)]
        for part in range(parts):
            if not there[part]:
                _write(location, format_, part, partial(on_progress, format_))
        files = [path for part in range(parts) for path in data_files(location.part(format_, part))]
        made.append(
            Generated(
                format=format_,
                num_files=len(files),
                bytes=sum(path.stat().st_size for path in files),
                write_s=None if all(there) else time.monotonic() - began,
            )
        )
    return made


def is_complete(folder: Path) -> bool:
    """Return whether every file exists with the size it was written with."""
    try:
        sizes = msgspec.json.decode((folder / COMPLETE).read_bytes(), type=dict[str, int])
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, *DECODE_ERRORS):
        return False


def data_files(folder: Path) -> list[Path]:
    """Return all files of a part, sorted by name."""
    found = (Path(at) / name for at, _, names in os.walk(folder) for name in names)
    return sorted(path for path in found if path.name != COMPLETE)


def _write(
    location: DataLocation, format_: Format, part: int, on_progress: Callable[[float], None]
) -> None:
    folder = location.part(format_, part)
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.mkdir(parents=True)
        STORAGE[format_].write(
            unfinished, location.shape, _counted(location.shape, part, on_progress)
        )
        files = data_files(unfinished)
        _to_disk(files)  # dirty pages could not be dropped from the page cache
        sizes = {str(path.relative_to(unfinished)): path.stat().st_size for path in files}
        write_atomically(unfinished / COMPLETE, msgspec.json.encode(sizes))
        unfinished.rename(folder)
    except OSError as error:
        raise UserError(f"data cannot be written to {location.root}: {error.strerror}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _counted(shape: Shape, part: int, on_progress: Callable[[float], None]) -> Iterator[Rows]:
    done = 0
    for rows in sample_shards(shape, part=part):
        yield rows
        done += len(rows)
        on_progress(done / shape.num_samples)


def _to_disk(paths: Sequence[Path]) -> None:
    if len(paths) > MAX_SINGLE_SYNCS:
        os.sync()
        return
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove_parts(location: DataLocation, parts: Sequence[Path]) -> None:
    """Remove these parts, and their parent folders if empty."""
    for part in parts:
        shutil.rmtree(part, ignore_errors=True)
    for folder in (*sorted({part.parent for part in parts}), location.folder, location.root):
        with contextlib.suppress(OSError):  # missing or not empty
            folder.rmdir()


_MOUNTS = Path("/proc/self/mounts")


def storage_of(folder: Path) -> Storage:
    """Return file system and device of `folder`, which need not exist yet."""
    file_system, device = _mount_of(folder.absolute())
    return Storage(file_system=file_system, device=device, free_bytes=free_bytes(folder))


def _mount_of(folder: Path) -> tuple[str | None, str | None]:
    """Return (type, device) of the mount that holds `folder`."""
    try:
        lines = _MOUNTS.read_text().splitlines()
    except OSError:
        return None, None
    best, found = -1, (None, None)
    for line in lines:
        device, point, kind, *_ = line.split()
        at = Path(point.replace("\\040", " "))
        if folder.is_relative_to(at) and len(at.parts) >= best:
            best, found = len(at.parts), (kind, device)  # type: ignore[assignment]
    return found
