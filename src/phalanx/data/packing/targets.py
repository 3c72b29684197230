"""Targets as numbers: of classes from 0 on, or of a quantity."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_CLASSES = 100_000


def labelled(values: NDArray[Any]) -> tuple[NDArray[Any], list[str]]:
    """(n,) targets and the names of their classes.

    Text: a class for each, in the order of the alphabet. Whole numbers from 0 on are classes
    already; others are put in order. Floats are quantities: float32, and no classes.
    values: (n,) of text, whole numbers or floats; (n, …) whole numbers are taken as they are.
    """
    if values.dtype.kind == "f":
        return values.astype(np.float32), []
    if values.dtype.kind in "biu" and _are_classes(values):
        return values.astype(np.int64), [str(i) for i in range(int(values.max()) + 1)]
    if values.ndim > 1:
        return values.astype(np.int64), []
    names, targets = np.unique(values, return_inverse=True)
    if values.dtype.kind in "biu" and len(names) > MAX_CLASSES:
        return values.astype(np.int64), []
    return targets.astype(np.int64), [str(name) for name in names.tolist()]


def _are_classes(values: NDArray[Any]) -> bool:
    return bool(values.size) and int(values.min()) >= 0 and int(values.max()) < MAX_CLASSES
