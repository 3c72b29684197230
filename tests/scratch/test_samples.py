"""Samples as ranks see them, and the batches that they make."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.data.datasets.images import Arrays
from phalanx.scratch.batches import batches, epoch_order, num_batches
from phalanx.scratch.images import map_images, write_images


@pytest.fixture
def arrays() -> Arrays:
    generator = np.random.default_rng(0)
    pixels = generator.integers(256, size=(30, 28, 28), dtype=np.uint8)
    labels = generator.integers(10, size=30, dtype=np.uint8)
    return Arrays(pixels[:20], labels[:20], pixels[20:], labels[20:])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_mapped_samples_are_those_that_were_written(
    tmp_path: Path, arrays: Arrays, dtype: str
) -> None:
    write_images(tmp_path, arrays, train_samples=12, validation_samples=None)
    train, validation = map_images(tmp_path, dtype)
    assert (len(train), len(validation)) == (12, 10)
    indices = np.array([11, 3, 3, 0])
    pixels, labels = train.take(indices)
    assert pixels.dtype == dtype
    expected = arrays.train_images[indices].reshape(4, -1) / 255
    np.testing.assert_allclose(pixels, expected, rtol=1e-6)
    np.testing.assert_array_equal(labels, arrays.train_labels[indices])
    assert train.take(np.empty(0, np.int64))[0].shape == (0, 784)
    _, last = validation.take(np.arange(10))
    np.testing.assert_array_equal(last, arrays.validation_labels)


def test_labels_stay_when_the_next_batch_is_taken(tmp_path: Path, arrays: Arrays) -> None:
    write_images(tmp_path, arrays, train_samples=None, validation_samples=None)
    train, _ = map_images(tmp_path, "float32")
    _, labels = train.take(np.arange(5))
    train.take(np.arange(5, 10))
    np.testing.assert_array_equal(labels, arrays.train_labels[:5])


@given(st.integers(1, 200), st.integers(1, 50))
def test_batches_cover_every_sample_once(num_samples: int, batch_size: int) -> None:
    cut = list(batches(num_samples, batch_size))
    assert [sample for batch in cut for sample in batch] == list(range(num_samples))
    assert len(cut) == num_batches(num_samples, batch_size)
    assert all(len(batch) == batch_size for batch in cut[:-1])


def test_an_order_belongs_to_its_seed_and_epoch() -> None:
    orders = [epoch_order(50, seed=seed, epoch=epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    assert np.array_equal(epoch_order(50, seed=0, epoch=1), orders[1])
