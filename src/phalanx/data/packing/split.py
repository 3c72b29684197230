"""Choice of validation samples and of the order in which samples are packed: pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]


class Splits(NamedTuple):
    """The samples of each, in the order in which they are packed."""

    train: Numbers
    validation: Numbers


def split(
    chunks: Sequence[range], *, seed: int, share: float, validation: Numbers | None = None
) -> Splits:
    """Every sample once, shuffled: chunks among each other, and samples within their chunk, so that
    each chunk is read once.

    share: of samples for validation, chosen at random all over the data; at least one, and never
    all, where it is above 0. validation: these instead.
    """
    random = np.random.Generator(np.random.PCG64(seed))
    order = _shuffled(chunks, random)
    is_validation = np.zeros(len(order), bool)
    if validation is not None:
        is_validation[validation] = True
    elif share > 0 and len(order) > 1:
        count = min(max(1, round(share * len(order))), len(order) - 1)
        is_validation[random.permutation(len(order))[:count]] = True
    return Splits(order[~is_validation[order]], order[is_validation[order]])


def _shuffled(chunks: Sequence[range], random: np.random.Generator) -> Numbers:
    parts = [
        chunks[i].start + random.permutation(len(chunks[i]))
        for i in random.permutation(len(chunks))
    ]
    return np.concatenate([np.empty(0, np.int64), *parts]).astype(np.int64)
