"""Every sample once an epoch, in an order that the number of ranks cannot change; within windows of
shards few of them at a time, with a known variety."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from phalanx.data.sampler import epoch_order, shard_windows, windowed_order

sample_counts = st.integers(0, 300)
seeds = st.integers(0, 2**64)
epochs = st.integers(0, 10_000)


@given(seed=seeds, epoch=epochs, num_samples=sample_counts)
def test_order_is_a_permutation_that_can_be_made_again(
    seed: int, epoch: int, num_samples: int
) -> None:
    order = epoch_order(num_samples, seed, epoch)
    assert order.dtype == torch.int64
    assert sorted(order.tolist()) == list(range(num_samples))
    assert torch.equal(order, epoch_order(num_samples, seed, epoch))


@given(seed=seeds, epoch=epochs, other_seed=seeds, other_epoch=epochs)
def test_other_epochs_and_seeds_have_other_orders(
    seed: int, epoch: int, other_seed: int, other_epoch: int
) -> None:
    same = (seed % 2**64, epoch) == (other_seed % 2**64, other_epoch)
    equal = torch.equal(epoch_order(200, seed, epoch), epoch_order(200, other_seed, other_epoch))
    assert equal == same


def test_seed_and_epoch_do_not_stand_in_for_each_other() -> None:
    assert not torch.equal(epoch_order(100, 0, 1), epoch_order(100, 1, 0))


def test_order_ignores_the_global_generator() -> None:
    torch.manual_seed(1)
    first, state = epoch_order(50, 0, 0), torch.random.get_rng_state()
    torch.manual_seed(2)
    assert torch.equal(first, epoch_order(50, 0, 0))
    torch.manual_seed(1)
    assert torch.equal(state, torch.random.get_rng_state())


shard_sizes = st.lists(st.integers(1, 12), min_size=1, max_size=15)
windows = st.integers(1, 20)
numbers = st.integers(0, 1000)


def starts(sizes: list[int]) -> list[int]:
    return [0, *np.cumsum(sizes).tolist()]


@given(sizes=shard_sizes, window=windows, seed=numbers, epoch=numbers)
def test_every_sample_comes_once_and_a_window_is_read_to_its_end(
    sizes: list[int], window: int, seed: int, epoch: int
) -> None:
    first = starts(sizes)
    order = windowed_order(first, window, seed, epoch)
    assert order.dtype == torch.int64
    assert sorted(order.tolist()) == list(range(first[-1]))
    assert torch.equal(order, windowed_order(first, window, seed, epoch))
    begin = 0
    for shards in shard_windows(len(sizes), window, seed, epoch):
        samples = {s for shard in shards for s in range(first[shard], first[shard + 1])}
        assert set(order[begin : begin + len(samples)].tolist()) == samples
        begin += len(samples)


@given(num_shards=st.integers(1, 40), window=windows, seed=numbers, epoch=numbers)
def test_windows_hold_every_shard_once(num_shards: int, window: int, seed: int, epoch: int) -> None:
    parts = shard_windows(num_shards, window, seed, epoch)
    assert sorted(shard for part in parts for shard in part) == list(range(num_shards))
    assert all(len(part) == window for part in parts[:-1])


def test_epochs_differ_in_windows_and_within_them() -> None:
    first = starts([50] * 6)
    orders = [windowed_order(first, 2, 0, epoch) for epoch in range(3)]
    assert shard_windows(6, 2, 0, 0) != shard_windows(6, 2, 0, 1)
    assert not torch.equal(orders[0], orders[1])
    alone = [windowed_order([0, 50], 1, 0, epoch) for epoch in range(2)]
    assert not torch.equal(*alone)


def effective_batch_size(
    num_shards: int, window: int, shard_samples: int, batch_size: int
) -> float:
    """Return the effective batch size under windowed shuffling in the worst case: the number of
    samples drawn at random from all the data that estimate its mean as well as one batch does,
    where every shard holds samples of one kind. Where shards are random subsets, as packing leaves
    them when its source has no order, a batch of b is worth b whatever the window.

    The variance of a batch's mean is that of the mean of the window's shards, drawn from all
    without replacement, and that of the batch within its window: with S shards in windows of w
    (w·n samples each), A = (S−w) / (w(S−1)), it is A + (1−A)/b · (wn−b)/(wn−1) of one sample's;
    the result is its inverse. Source: Cochran 1977, "Sampling techniques", chapters 2 and 10.
    """
    window = min(window, num_shards)
    samples = window * shard_samples
    batch_size = min(batch_size, samples)
    between = 0.0 if num_shards == 1 else (num_shards - window) / (window * (num_shards - 1))
    left = (samples - batch_size) / (samples - 1) if samples > 1 else 0.0
    variance = between + (1 - between) / batch_size * left
    everything = num_shards * shard_samples
    return min(1 / variance, everything) if variance > 0 else float(everything)


def test_variety_is_that_of_a_simulation() -> None:
    """Shards of one kind each: the variance of a batch's mean, over many epochs."""
    shards, size, batch = 12, 40, 16
    kinds = np.repeat(np.random.default_rng(1).normal(size=shards), size)
    kinds = (kinds - kinds.mean()) / kinds.std()
    for window in (1, 3):
        order = [
            windowed_order(starts([size] * shards), window, 0, epoch).numpy()[:batch]
            for epoch in range(800)
        ]
        variance = np.mean([kinds[samples].mean() ** 2 for samples in order])
        assert 1 / variance == pytest.approx(
            effective_batch_size(shards, window, size, batch), rel=0.15
        )


def test_variety_grows_with_the_window_up_to_the_batch() -> None:
    worth = [effective_batch_size(100, window, 1000, 128) for window in (1, 2, 8, 32, 100)]
    assert worth == sorted(worth)
    assert worth[0] == pytest.approx(1.0)
    assert worth[2] == pytest.approx(8.1, abs=0.1)
    assert worth[-1] == pytest.approx(128, rel=0.01)
    assert effective_batch_size(1, 1, 10, 10) == 10
