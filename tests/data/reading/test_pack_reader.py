"""Batches as readers make them: normalised, in memory that comes back when nobody holds it."""

from pathlib import Path

import numpy as np
import torch

from phalanx.data.packed.buffer_pool import SMALLEST_BYTES
from phalanx.data.packed.index import Field
from phalanx.data.packed.pack import Pack
from phalanx.data.packed.writer import PackWriter
from phalanx.data.reading.pack_reader import (
    CHUNK_BYTES,
    Preparation,
    ReadRequest,
    SampleCache,
    SplitReader,
)

SHAPE = (2, 100, 300)
FIELDS = [
    Field(name="inputs", dtype="uint8", shape=list(SHAPE)),
    Field(name="targets", dtype="int64", shape=[]),
]
MEANS, DEVIATIONS = [100.3, 7.7], [31.1, 0.0]
NUM, BATCH = 24, 8


def reader_of(folder: Path, inputs: np.ndarray) -> SplitReader:
    with PackWriter(folder, fields=FIELDS, shard_bytes=2**20) as writer:
        writer.add_rows({"inputs": inputs, "targets": np.arange(NUM)})
    preparation = Preparation(
        shape=SHAPE,
        dtype="float32",
        means=MEANS,
        deviations=DEVIATIONS,
        packed_dims=3,
        num_classes=NUM,
        augment_seed=None,
    )
    return SplitReader(Pack(folder), preparation)


def normalised(inputs: np.ndarray) -> np.ndarray:
    scales = 1 / np.array([31.1, 1.0])  # a channel that is the same everywhere stays
    shifts = np.array(MEANS) * scales
    values = inputs.astype(np.float32)
    values *= scales.astype(np.float32).reshape(-1, 1, 1)
    values -= shifts.astype(np.float32).reshape(-1, 1, 1)
    return values


def test_a_batch_that_is_held_stays_what_it_is_and_memory_comes_back(tmp_path: Path) -> None:
    """A tensor holds it, too, and so does a part of one."""
    assert 4 * BATCH * int(np.prod(SHAPE)) >= max(SMALLEST_BYTES, 2 * CHUNK_BYTES)
    inputs = np.random.default_rng(0).integers(0, 256, (NUM, *SHAPE), np.uint8)
    reader, expected = reader_of(tmp_path / "p", inputs), normalised(inputs)
    held: list[tuple[np.ndarray, torch.Tensor]] = []
    places: set[int] = set()
    for seed in range(6):
        for samples in np.split(np.random.default_rng(seed).permutation(NUM), NUM // BATCH):
            result = reader.read(ReadRequest("train", samples))
            assert result.inputs.tobytes() == expected[samples].tobytes()
            places.add(result.inputs.ctypes.data)
            if seed == 0:
                held.append((samples[-1:], torch.from_numpy(result.inputs)[-1:]))
            del result
    for samples, tensor in held:
        assert tensor.numpy().tobytes() == expected[samples].tobytes()
    assert len(places) == len(held) + 1, "one for all the batches that nobody held"


def rows(samples: list[int]) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.array(samples)
    return np.repeat(numbers[:, None], 5, axis=1).astype(np.uint8), numbers


def read(cache: SampleCache, samples: list[int]) -> list[int]:
    """Read samples; return those that were not in the cache."""
    asked: list[int] = []

    def missing(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        asked.extend(numbers.tolist())
        return rows(asked)

    inputs, targets = cache.read(np.array(samples), missing)
    assert targets.tolist() == samples and inputs[:, 2].tolist() == samples
    return asked


def test_as_many_are_kept_as_fit() -> None:
    cache = SampleCache(100, 10 * (5 + 8) + 3)
    assert read(cache, [0, 1, 2, 3]) == [0, 1, 2, 3]
    cache.add(np.array([7, 3, 50, 9]), rows([7, 3, 50, 9]))
    cache.add(np.arange(60, 80), rows(list(range(60, 80))))
    kept = {3, 7, 9, 50, *range(60, 66)}
    assert [sample for sample in range(100) if not read(cache, [sample])] == sorted(kept)
    assert read(cache, [65, 3]) == []
    assert read(cache, [*range(99, 0, -1)]) == [n for n in range(99, 0, -1) if n not in kept]


def test_none_are_kept_without_memory() -> None:
    cache = SampleCache(10, 0)
    cache.add(np.array([1]), rows([1]))
    assert read(cache, [1, 2]) == [1, 2]
