"""`phalanx data pack` and `phalanx data verify`."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Annotated

import numpy as np
from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape
from rich.progress import ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from phalanx.cli.progress_bars import ProgressBars
from phalanx.data.packed.decode import allow_megapixels
from phalanx.data.packed.index import PackIndex
from phalanx.data.packed.index_file import find_splits
from phalanx.data.packed.verify import FileState, damaged_samples, size_bytes, verify
from phalanx.data.packing.find_origin import find_origin
from phalanx.data.packing.options import OriginOptions
from phalanx.data.packing.origin import Origin
from phalanx.data.packing.run import PackingOptions, pack
from phalanx.errors import RunFailedError, UserError
from phalanx.jobs.cores import usable_cores

MAX_NAMED_SAMPLES = 10
READING = Parameter(name="*", negative=(), show_default=False)


def pack_data(
    source: str,
    folder: Path,
    /,
    *,
    packing: Annotated[PackingOptions, Parameter(name="*", negative_bool=())] = PackingOptions(),  # noqa: B008  # frozen
    reading: Annotated[OriginOptions, READING] = OriginOptions(),  # noqa: B008  # frozen
    max_megapixels: float | None = None,
) -> None:
    """Pack a data set into shards for random access, with checksums; resumes if interrupted.

    For example:

        phalanx data pack photos/ photos.pack --size 64x64

        phalanx data pack iris.csv iris.pack --target species

        phalanx data pack my_data.py:samples my.pack

        phalanx data pack digits digits.pack && phalanx train --data digits.pack

    Parameters
    ----------
    source
        A folder with a folder of images for each class, or of IDX files; CSV, JSON lines, Parquet,
        Arrow, HDF5, npz, TFRecord, LMDB or tar, most of them also as a folder of files;
        FILE.py:NAME, a function that yields samples; or digits, mnist, fashion, cifar10, text.
    folder
        Pack to write: a folder with a folder for each split.
    max_megapixels
        Refuse larger images. Default: 178; a larger image may be a file made to exhaust the memory.
    """
    warnings.filterwarnings("ignore", module=r"PIL\b")  # faults of files are reported here
    if max_megapixels is not None:
        allow_megapixels(max_megapixels)
    with Console(stderr=True).status(escape(f"reading {source}")):
        origin = find_origin(source, reading)
    counted = TextColumn("{task.completed:,.0f} of {task.total:,.0f} samples")
    try:
        with closing(origin), ProgressBars(counted, _Speed(), TimeRemainingColumn()) as bars:
            indices = pack(origin, folder, packing, bars.progress)
    except KeyboardInterrupt:
        print(f"\nstopped: run the same command to resume {folder}", file=sys.stderr)
        raise
    _show(indices, origin)
    if hint := _next_step(indices, folder):
        print(f"\nnext: {hint}")


def _next_step(indices: Mapping[str, PackIndex], folder: Path) -> str:
    fields = indices["train"].fields
    if any(field.shape is None for field in fields):
        return ""
    named = {field.name: field for field in fields}
    if len(indices) == 2 and named.keys() == {"inputs", "targets"}:
        inputs, targets = named["inputs"].shape, named["targets"].shape
        is_whole = np.dtype(named["targets"].dtype).kind in "iub"
        if is_whole and inputs is not None and targets in ([], inputs[:1]):
            return f"phalanx train --data {folder}"
    return f'phalanx.start(model, optimizer, "{folder}", batch_size=…) in a program of yours'


def verify_data(folder: Path, /, *, threads: int | None = None) -> None:
    """Read every byte of a pack and compare the checksums; exit code 1 if anything is damaged.

    For example:

        phalanx data verify digits.pack

        phalanx data verify digits.pack/train --threads 4

    Parameters
    ----------
    folder
        A pack, or one split of it.
    threads
        Number of threads that read. Default: one per processor.
    """
    if threads is not None and threads < 1:
        raise UserError(f"--threads must be at least 1, not {threads}")
    damaged: list[FileState] = []
    num_files, num_bytes = 0, 0
    found = find_splits(folder)
    for fault in found.faults:
        print(fault)
    for split, index in found.indices.items():
        states = _verified(split, index, threads or usable_cores())
        faulty = [state for state in states if state.fault]
        _show_damage(split, faulty)
        damaged += faulty
        num_files += len(states)
        num_bytes += size_bytes(index)
    if found.faults:
        raise RunFailedError(f"{folder} is incomplete: {found.faults[0]}")
    if damaged:
        raise RunFailedError(f"{len(damaged)} of {num_files} files of {folder} are damaged")
    listed = ", ".join(f"{s.name} {i.num_samples:,}" for s, i in found.indices.items())
    print(f"samples: {listed}")
    print(f"{folder}: {num_files} files, {num_bytes / 1e6:,.1f} MB, all intact")


def _verified(folder: Path, index: PackIndex, num_threads: int) -> list[FileState]:
    lock, done, total = threading.Lock(), 0, size_bytes(index)
    with ProgressBars(TextColumn("{task.percentage:3.0f} %"), TimeRemainingColumn()) as bars:

        def on_read(num_bytes: int) -> None:
            nonlocal done
            with lock:
                done += num_bytes
                bars.progress(escape(folder.name), done, total)

        return verify(folder, num_threads=num_threads, on_read=on_read)


def _show_damage(folder: Path, faulty: list[FileState]) -> None:
    for state in faulty:
        print(f"{state.path} {state.fault}")
    if not faulty:
        return
    lost = damaged_samples(folder, faulty)
    for error in lost[:MAX_NAMED_SAMPLES]:
        print(
            f"  sample {error.sample}, {error.file.name} byte {error.offset_bytes}: {error.fault}"
        )
    if len(lost) > MAX_NAMED_SAMPLES:
        print(f"  and {len(lost) - MAX_NAMED_SAMPLES:,} more samples of {folder.name}")


def _show(indices: Mapping[str, PackIndex], origin: Origin) -> None:
    print(f"{'split':12}{'samples':>11}{'shards':>8}{'MB':>11}  fields")
    for split, index in indices.items():
        fields = ", ".join(
            f"{field.name} {field.dtype} {_shape(field.shape)}".rstrip()
            + (f" {field.encoding}" if field.encoding != "raw" else "")
            for field in index.fields
        )
        megabytes = size_bytes(index) / 1e6
        print(
            f"{split:12}{index.num_samples:11,}{len(index.shards):8,}{megabytes:11,.1f}  {fields}"
        )
    classes = next(iter(indices.values())).classes
    if classes:
        listed = ", ".join(classes[:10]) + (", …" if len(classes) > 10 else "")
        print(f"{len(classes)} classes: {listed}")
    for group in origin.skipped:
        print(f"not packed: {group}")
    for note in origin.notes:
        print(f"note: {note}")


def _shape(shape: list[int] | None) -> str:
    return "of differing shapes" if shape is None else "×".join(map(str, shape))


class _Speed(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f} samples/s" if task.speed else "")
