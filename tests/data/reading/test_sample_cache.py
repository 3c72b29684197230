"""Samples read once are found in the cache, as many as fit."""

import numpy as np

from phalanx.data.reading.sample_cache import SampleCache


def rows(samples: list[int]) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.array(samples)
    return np.repeat(numbers[:, None], 5, axis=1).astype(np.uint8), numbers


def test_as_many_are_kept_as_fit() -> None:
    cache = SampleCache(100, 10 * (5 + 8) + 3)
    assert (cache.find(np.arange(4)) == -1).all()
    cache.add(np.array([7, 3, 50, 9]), rows([7, 3, 50, 9]))
    cache.add(np.arange(60, 80), rows(list(range(60, 80))))
    kept = [sample for sample in range(100) if cache.find(np.array([sample]))[0] >= 0]
    assert kept == [3, 7, 9, 50, *range(60, 66)]
    inputs, targets = cache.get(cache.find(np.array([65, 3])))
    assert targets.tolist() == [65, 3] and inputs[:, 2].tolist() == [65, 3]


def test_none_are_kept_without_memory() -> None:
    cache = SampleCache(10, 0)
    cache.add(np.array([1]), rows([1]))
    assert cache.find(np.array([1, 2])).tolist() == [-1, -1]
