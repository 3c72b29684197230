"""Labelled image set as arrays of bytes, before conversion to tensors."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


class Arrays(NamedTuple):
    """Images (n, 28, 28), or (n, 3, 32, 32) of colours; labels (n,) from 0 to 9."""

    train_images: Bytes
    train_labels: Bytes
    validation_images: Bytes
    validation_labels: Bytes
