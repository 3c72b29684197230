"""The labels of a data set in which every class has equally many images."""

from __future__ import annotations

import numpy as np

from phalanx.data.datasets.arrays import Bytes
from phalanx.errors import UserError

NUM_CLASSES = 10


def check_labels(labels: Bytes, source: str, remedy: str) -> None:
    """Raises: UserError where one is no class, or classes are not equally many, as published.

    labels: (n,). It stands in for a checksum where none was published.
    """
    wrong = np.flatnonzero(labels >= NUM_CLASSES)
    if wrong.size:
        raise UserError(
            f"{source} is damaged: label {wrong[0]} is {labels[wrong[0]]}, "
            f"and there are {NUM_CLASSES} classes\n{remedy}"
        )
    counts = np.bincount(labels, minlength=NUM_CLASSES)
    if (counts != counts[0]).any():
        raise UserError(
            f"{source} is damaged: its classes have {counts.min()} to {counts.max()} images, "
            f"not {labels.size // NUM_CLASSES} each\n{remedy}"
        )
