"""Every format gives back the bytes that were written, in any order, to any reader."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from phalanx.bench.io.config import FORMATS
from phalanx.bench.io.formats import Shape, unavailable_reason
from phalanx.bench.io.generate import (
    DataLocation,
    data_files,
    generate,
    sample_shards,
    wrong_samples,
)
from phalanx.bench.io.loaders import BatchReader
from phalanx.records.io import Format

SHAPES = {
    "small samples": Shape(num_samples=357, sample_bytes=1000, shard_samples=100),
    "large samples": Shape(num_samples=7, sample_bytes=3_000_001, shard_samples=3),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("format_", FORMATS)
def test_what_was_written_is_read(tmp_path: Path, format_: Format, shape: Shape) -> None:
    if why := unavailable_reason(format_):
        pytest.skip(why)
    location = DataLocation(root=tmp_path, shape=shape)
    (made,) = generate(location, [format_], 1, lambda *_: None)
    files = data_files(location.part(format_, 0))
    assert (made.num_files, made.bytes) == (len(files), sum(p.stat().st_size for p in files))
    assert made.bytes >= shape.num_samples * shape.sample_bytes
    truth = np.concatenate(list(sample_shards(shape, part=0)))
    order = np.random.default_rng(0).permutation(shape.num_samples)
    fetch: BatchReader = pickle.loads(
        pickle.dumps(BatchReader(format_, location.part(format_, 0), shape))
    )
    with ThreadPoolExecutor(3) as readers:
        parts = list(readers.map(fetch, np.array_split(order, 5)))
    fetch.close()
    rows = np.concatenate(parts)
    assert wrong_samples(rows, order) == 0
    assert np.array_equal(rows, truth[order])


def test_samples_are_the_same_every_time_and_others_for_every_part() -> None:
    shape = SHAPES["small samples"]
    once, again, other = (np.concatenate(list(sample_shards(shape, part=p))) for p in (0, 0, 1))
    assert np.array_equal(once, again)
    assert not np.array_equal(once, other)
    values = np.bincount(once[:, 8:].ravel(), minlength=256) / once[:, 8:].size
    assert abs(values - 1 / 256).max() < 1e-3  # nothing for a compressor


def test_a_sample_that_was_not_asked_for_is_noticed() -> None:
    rows = np.concatenate(list(sample_shards(SHAPES["small samples"], part=0)))[:4]
    assert wrong_samples(rows, np.array([0, 1, 2, 3])) == 0
    assert wrong_samples(rows, np.array([0, 2, 1, 3])) == 2
    assert wrong_samples(rows[:3], np.array([0, 1, 2, 3])) == 4
