"""From the options to where a rank's batches come from."""

from __future__ import annotations

import torch

from phalanx.data.dataset import load_dataset
from phalanx.data.in_memory import InMemory
from phalanx.data.source import Source
from phalanx.parallel.strategy import Strategy
from phalanx.train.config import TrainConfig


def open_source(config: TrainConfig, strategy: Strategy, dtype: torch.dtype) -> Source:
    """Data in memory, or packed. Collective where it is packed.

    Raises: UserError when the data is missing or damaged, or has fewer samples than asked for.
    """
    return InMemory(
        load_dataset(
            config.dataset,
            config.data_root,
            dtype=dtype,
            train_samples=config.train_samples,
            validation_samples=config.validation_samples,
        )
    )
