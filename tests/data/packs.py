"""Small packs for tests, whose samples tell their numbers."""

from pathlib import Path

import numpy as np

from phalanx.data.packed.index import Field
from phalanx.data.packed.writer import PackWriter

CLASSES = 3


def make_pack(
    folder: Path,
    *,
    samples: int = 77,
    validation: int = 20,
    shape: tuple[int, ...] = (1, 4, 4),
    dtype: str = "float64",
    shard_samples: int = 10,
) -> Path:
    """Inputs whose first value is the sample's number (÷ 1000 of floats); the rest is random."""
    for split, number in (("train", samples), ("validation", validation)):
        inputs, targets = rows(number, shape, dtype)
        fields = [
            Field(name="inputs", dtype=dtype, shape=list(shape)),
            Field(name="targets", dtype="int64", shape=[]),
        ]
        with PackWriter(
            folder / split,
            fields=fields,
            shard_bytes=shard_samples * (inputs[0].nbytes + 8),
            classes=[str(number) for number in range(CLASSES)],
        ) as writer:
            writer.add_rows({"inputs": inputs, "targets": targets})
    return folder


def rows(
    number: int, shape: tuple[int, ...] = (1, 4, 4), dtype: str = "float64"
) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets, as they are packed."""
    random = np.random.default_rng(number)
    floats = np.dtype(dtype).kind == "f"
    drawn = (
        random.random((number, *shape)) if floats else random.integers(256, size=(number, *shape))
    )
    inputs = drawn.astype(dtype)
    inputs.reshape(number, -1)[:, 0] = np.arange(number) / (1000 if floats else 1)
    return inputs, random.integers(CLASSES, size=number)


def number_of(inputs: np.ndarray) -> list[int]:
    """The samples that these inputs are, of a pack of floats."""
    return np.rint(np.asarray(inputs).reshape(len(inputs), -1)[:, 0] * 1000).astype(int).tolist()


def alter(folder: Path, sample: int) -> None:
    """One byte of a sample of a pack as `make_pack` makes it by default; not of the last shard."""
    shard = folder / "train" / f"shard-{sample // 10:05d}.inputs.npy"
    content = bytearray(shard.read_bytes())
    content[len(content) - (10 - sample % 10) * 128 + 50] ^= 1
    shard.write_bytes(content)
