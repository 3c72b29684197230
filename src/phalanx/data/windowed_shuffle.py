"""Windowed shuffle, which keeps reads local, and its effect on the variance of a batch.

Every epoch the shards are permuted and grouped into windows, and the samples within a window are
permuted. Reads then stay within few files at a time, which a cache or the node's local disk can
hold. The cost is less variety: a batch comes from few shards.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from phalanx.data.sampler import epoch_generator


def shard_windows(num_shards: int, window: int, seed: int, epoch: int) -> list[list[int]]:
    """Return the shards of each window, in reading order: `window` shards each, the rest in the
    last; the same on every rank."""
    order = torch.randperm(num_shards, generator=epoch_generator(seed, epoch)).tolist()
    return [order[start : start + window] for start in range(0, num_shards, window)]


def windowed_order(first_samples: Sequence[int], window: int, seed: int, epoch: int) -> Tensor:
    """Return the order of the samples in an epoch, shuffled within windows: (num_samples,) int64.

    first_samples: number of the first sample of each shard, then the number of samples.
    """
    generator = epoch_generator(seed, epoch)
    torch.randperm(
        len(first_samples) - 1, generator=generator
    )  # advance past the draw of `shard_windows`
    parts = []
    for shards in shard_windows(len(first_samples) - 1, window, seed, epoch):
        samples = torch.cat([torch.arange(first_samples[s], first_samples[s + 1]) for s in shards])
        parts.append(samples[torch.randperm(len(samples), generator=generator)])
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)


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
