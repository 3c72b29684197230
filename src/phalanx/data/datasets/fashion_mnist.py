"""Fashion-MNIST: clothes in the format of MNIST.

Source: Xiao, Rasul & Vollgraf 2017, arXiv:1708.07747.
"""

from __future__ import annotations

from pathlib import Path

from phalanx.data.datasets.arrays import Arrays
from phalanx.data.datasets.check_labels import check_labels
from phalanx.data.datasets.mnist import read_idx_files
from phalanx.data.published.file_sets import FASHION


def read_fashion(folder: Path) -> Arrays:
    """The data in `folder`.

    Raises: UserError when a file is missing, truncated or not as it should be.
    """
    arrays = read_idx_files(folder, FASHION)
    remedy = FASHION.files[0].remedy
    check_labels(arrays.train_labels, f"{folder / FASHION.files[1].name}", remedy)
    check_labels(arrays.validation_labels, f"{folder / FASHION.files[3].name}", remedy)
    return arrays
