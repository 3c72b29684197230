"""Options of the training that `phalanx study survival` disturbs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from phalanx.records.configuration import RecordedOptions


@dataclass(frozen=True, kw_only=True)
class DisturbedTraining(RecordedOptions):
    """A seeded training of the `mlp` on images, with the same bits on any number of ranks."""

    width: int
    """Hidden units of the first layer."""
    batch_size: int
    micro_batches: int
    steps: int
    train_samples: int
    lr: float
    seed: int
    dataset: str
    data_root: Path | None
    timeout_s: float
    checkpoint_dir: Path | None = None
    """Folder of the checkpoints; resumed from where there is one. None writes none."""
    checkpoint_steps: int | None = None
