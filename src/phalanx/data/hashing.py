"""Counter-based random numbers: hashes of seed, epoch and sample, without generator state.

Source: SplitMix64, Steele et al. 2014, doi:10.1145/2660193.2660195.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_GAMMA, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def hash_seed(seed: int, epoch: int) -> int:
    """Hash (seed, epoch) to 63 bits, so that neighbouring seeds share no epoch (seed 0, epoch 1
    must not be seed 1, epoch 0)."""
    return _splitmix64(_splitmix64(seed) ^ epoch) >> 1


def hash_each(key: int, numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Hash (key, number) to 64 bits for each of `numbers`, (n,)."""
    keys = np.uint64(_splitmix64(key))
    with np.errstate(over="ignore"):  # modulo 2**64 is meant
        value = (numbers.astype(np.uint64) ^ keys) + np.uint64(_GAMMA)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(_FIRST)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(_SECOND)
    result: NDArray[np.uint64] = value ^ (value >> np.uint64(31))
    return result


def _splitmix64(value: int) -> int:
    value = (value + _GAMMA) & _MASK
    value = ((value ^ (value >> 30)) * _FIRST) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND) & _MASK
    return value ^ (value >> 31)
