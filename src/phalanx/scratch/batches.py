"""The samples of each update, independent of the number of ranks.

The order of an epoch is cut into global batches first; a scheme shares each batch among its ranks
second.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from phalanx.scratch.initial import generator


def epoch_order(num_samples: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """(num_samples,): the order of the samples in an epoch, the same on every rank."""
    return generator(seed, f"order of epoch {epoch}").permutation(num_samples)


def batches(num_samples: int, batch_size: int) -> Iterator[range]:
    """Consecutive ranges of `batch_size` samples; the last one may be shorter."""
    for start in range(0, num_samples, batch_size):
        yield range(start, min(start + batch_size, num_samples))


def num_batches(num_samples: int, batch_size: int) -> int:
    return -(-num_samples // batch_size)
