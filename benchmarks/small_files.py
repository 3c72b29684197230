"""Cost of many small files against one large file, in the page cache and without any loader.

No loader of small files can be faster than this.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from phalanx.bench.io.formats.known import path_of, write_files
from phalanx.bench.io.formats.store import Shape
from phalanx.bench.io.generate import sample_blocks

Costs = dict[str, dict[str, float]]


def small_file_costs(folder: Path, *, num_files: int, file_bytes: int, runs: int = 7) -> Costs:
    """Return CPU microseconds per file: `median`, `low` and `high` of opening and closing it, of
    also reading it, and of reading as many bytes of one large file; after one warm-up round."""
    folder.mkdir(parents=True)
    shape = Shape(num_samples=num_files, sample_bytes=file_bytes, shard_samples=num_files)
    write_files(folder, shape, sample_blocks(shape, part=0))
    paths = [str(path_of(folder, number)) for number in range(num_files)]
    whole = folder / "whole"
    with whole.open("wb") as file:
        for path in paths:
            file.write(Path(path).read_bytes())
    into = [memoryview(bytearray(file_bytes))]

    def opened() -> None:
        for path in paths:
            os.close(os.open(path, os.O_RDONLY))

    def opened_and_read() -> None:
        for path in paths:
            descriptor = os.open(path, os.O_RDONLY)
            os.readv(descriptor, into)
            os.close(descriptor)

    def read_from_one() -> None:
        descriptor = os.open(whole, os.O_RDONLY)
        for number in range(num_files):
            os.preadv(descriptor, into, number * file_bytes)
        os.close(descriptor)

    operations: dict[str, Callable[[], None]] = {
        "open, close": opened,
        "open, read, close": opened_and_read,
        "read out of one file": read_from_one,
    }
    took: dict[str, list[float]] = {name: [] for name in operations}
    for _ in range(runs + 1):
        for name, operation in operations.items():
            began = time.thread_time()
            operation()
            took[name].append(1e6 * (time.thread_time() - began) / num_files)
    return {
        name: {"median": median(times[1:]), "low": min(times[1:]), "high": max(times[1:])}
        for name, times in took.items()
    }
