"""Packs for tests, on a disk in memory where there is one: it is quicker to bring files there."""

import io
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from phalanx.data.packed.decode import pillow
from phalanx.data.packed.index import Field
from phalanx.data.packed.writer import PackWriter

IN_MEMORY = Path("/dev/shm")

IMAGES = [
    Field(name="inputs", dtype="uint8", shape=[1, 4, 4]),
    Field(name="targets", dtype="int64", shape=[]),
]


Kind = Literal["raw", "png"]
"""Of one size, or files of images."""


@contextmanager
def folder() -> Iterator[Path]:
    place = IN_MEMORY if IN_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(dir=place) as path:
        yield Path(path)


def values(field: Field, num_samples: int, seed: int = 0) -> NDArray[Any]:
    """(n, …) of any bits, NaNs too."""
    dtype = np.dtype(field.dtype)
    shape = (num_samples, *(field.shape or []))
    num_bytes = int(np.prod(shape)) * dtype.itemsize
    content = np.random.default_rng(seed).bytes(num_bytes)
    array = np.frombuffer(content, np.uint8)
    return (array % 2 == 1 if dtype == np.bool_ else array.view(dtype)).reshape(shape)


def rows(fields: Sequence[Field], num_samples: int) -> dict[str, NDArray[Any]]:
    return {field.name: values(field, num_samples, i) for i, field in enumerate(fields)}


def fields_of(kind: Kind) -> list[Field]:
    return [msgspec.structs.replace(IMAGES[0], encoding=kind), IMAGES[1]]


def sample_of(content: dict[str, NDArray[Any]], number: int, kind: Kind) -> dict[str, Any]:
    sample: dict[str, Any] = {name: part[number, ...] for name, part in content.items()}
    if kind == "png":
        file = io.BytesIO()
        pillow().fromarray(sample["inputs"][0]).save(file, "PNG")
        sample["inputs"] = file.getvalue()
    return sample


def make(
    path: Path,
    kind: Kind,
    *,
    num_samples: int = 30,
    shard_bytes: int = 240,
    splits: dict[str, int] | None = None,
) -> dict[str, NDArray[Any]]:
    """Small images and labels; several shards."""
    content = rows(IMAGES, num_samples)
    shard_bytes = shard_bytes if kind == "raw" else 4 * shard_bytes
    with PackWriter(path, fields=fields_of(kind), shard_bytes=shard_bytes, splits=splits) as writer:
        if kind == "raw":
            writer.add_rows(content)
        else:
            for number in range(num_samples):
                writer.add(sample_of(content, number, kind))
    return content


def files_of(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}


def flip(file: Path, offset: int) -> None:
    """Change one bit."""
    content = bytearray(file.read_bytes())
    content[offset] ^= 1
    file.write_bytes(content)
