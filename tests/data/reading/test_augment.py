"""The same augmentation for (seed, epoch, sample), however the samples are read."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from phalanx.data.reading.augment import augment, draw_augmentations


def images(number: int) -> np.ndarray:
    random = np.random.default_rng(0)
    return random.integers(1, 256, (number, 3, 16, 24)).astype(np.uint8)


@given(cut=st.integers(0, 20), epoch=st.integers(0, 100))
def test_parts_are_augmented_as_the_whole(cut: int, epoch: int) -> None:
    whole, samples = images(20), np.arange(20) * 7
    together = augment(whole, samples, seed=1, epoch=epoch)
    parts = [
        augment(whole[part], samples[part], seed=1, epoch=epoch)
        for part in (slice(None, cut), slice(cut, None))
    ]
    assert np.array_equal(np.concatenate(parts), together)
    assert together.dtype == np.uint8


def test_an_image_is_moved_and_mirrored_as_chosen() -> None:
    whole, samples = images(50), np.arange(50)
    found = augment(whole, samples, seed=3, epoch=2)
    for row, (down, right, mirror) in enumerate(
        zip(*draw_augmentations(samples, 2, seed=3, epoch=2), strict=True)
    ):
        expected = np.zeros_like(whole[row])
        to_rows, to_columns = (
            slice(max(0, n), size + min(0, n)) for n, size in ((down, 16), (right, 24))
        )
        from_rows, from_columns = (
            slice(max(0, -n), size - max(0, n)) for n, size in ((down, 16), (right, 24))
        )
        expected[:, to_rows, to_columns] = whole[row][:, from_rows, from_columns]
        if mirror:
            expected = expected[..., ::-1]
        assert np.array_equal(found[row], expected), row


def test_choices_are_spread_evenly_and_change_with_epoch_and_seed() -> None:
    down, right, mirror = draw_augmentations(np.arange(30_000), 2, seed=0, epoch=0)
    for shift in (down, right):
        counts = np.bincount(shift + 2)
        assert len(counts) == 5 and abs(counts / 6000 - 1).max() < 0.05
    assert abs(mirror.mean() - 0.5) < 0.02
    for seed, epoch in ((0, 1), (1, 0)):
        assert (
            draw_augmentations(np.arange(1000), 2, seed=seed, epoch=epoch)[0] != down[:1000]
        ).mean() > 0.5
