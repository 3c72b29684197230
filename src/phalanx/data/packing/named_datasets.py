"""Data sets that Phalanx knows by name, as origins to pack."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np

from phalanx.data.datasets.catalog import Name, resolve
from phalanx.data.datasets.images import read_images
from phalanx.data.datasets.text import read_text
from phalanx.data.packing.origin import ArraysOrigin

NAMES: tuple[str, ...] = get_args(Name)


def read_known(name: str, data_root: Path | None = None) -> ArraysOrigin:
    """Images (channels, height, width) and their classes; of text tokens and those that follow.

    Raises: UserError when files are asked for and missing, or damaged.
    """
    choice = resolve(name, data_root)
    arrays = read_text() if choice.name == "text" else read_images(choice)
    train_inputs, train_targets, validation_inputs, validation_targets = arrays
    inputs = np.concatenate([train_inputs, validation_inputs])
    targets = np.concatenate([train_targets, validation_targets]).astype(np.int64)
    return ArraysOrigin(
        choice.name if choice.folder is None else f"{choice.name} in {choice.folder}",
        inputs.reshape(len(inputs), *choice.shape.inputs),
        targets,
        classes=[str(i) for i in range(choice.shape.num_classes)],
        fingerprint=f"{len(inputs)} samples",
        num_train=len(train_inputs),
    )
