"""The options of one training run, validated where they are made. Needs neither torch nor MPI."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from phalanx.errors import UserError
from phalanx.models.options import ModelName, ModelOptions, completed
from phalanx.train.communication_options import CommunicationOptions
from phalanx.train.data_options import DataOptions, DatasetName
from phalanx.train.optimizer_options import OptimizerOptions
from phalanx.train.parallel_options import ParallelOptions, option

__all__ = ["DatasetName", "DtypeName", "TrainConfig"]

DtypeName = Literal["float32", "float64"]

DEFAULT_BATCH_SIZE = 128
GPT_BATCH_SIZE = 32
"""A sample of text asks for as many predictions as it has characters, and there are few samples:
with 128 a run has too few steps to learn much."""


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """Options of the model and of the length of training."""

    model: ModelName = "mlp"
    """The network: `mlp` 784-256-128-10, `cnn` two convolutions, `rnn` an LSTM over 28 rows,
    `resnet` residual blocks, `gpt` a transformer for text."""

    width: int | None = None
    """Hidden units of the `mlp` (256), channels of the `resnet` (16), width of the `gpt` (128)."""

    layers: int | None = None
    """Blocks of the `gpt` (4) or of each stage of the `resnet` (1)."""

    heads: int | None = None
    """Attention heads of the `gpt` (4)."""

    epochs: int = 5
    """Passes over the training data."""

    batch_size: int | None = None
    """Global batch: samples an update, over all ranks together. Default: 128, and 32 for gpt."""

    per_rank_batch_size: int | None = None
    """Samples an update on each rank; the global batch then grows with the ranks."""

    seed: int = 0
    """Decides the initial weights and the order of the samples."""

    dtype: DtypeName = "float32"
    """Precision of parameters and arithmetic."""


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """Options of checkpoints, resuming, records and the timeout."""

    checkpoint_dir: Path | None = None
    """Where a checkpoint is written after every epoch. Default: none is written."""

    checkpoint_steps: int | None = None
    """Write one after every so many steps as well. Default: after epochs only."""

    resume: Path | None = None
    """Resume from this checkpoint, or from the newest complete one in this folder."""

    restart_schedule: bool = False
    """--resume: begin the learning rate's schedule anew, over the epochs that are left."""

    allow_changes: bool = False
    """--resume: continue although data, batch or other options differ from the checkpoint's."""

    run_dir: Path | None = None
    """Folder of the run's records. Default: a new one under runs/train."""

    timeout_s: float = 300.0
    """Fail when ranks have waited this long for each other, and name the missing ranks."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig(
    CheckpointOptions,
    CommunicationOptions,
    ParallelOptions,
    OptimizerOptions,
    DataOptions,
    TrainingOptions,
):
    """All options of one training run."""

    def __post_init__(self) -> None:
        self.check_parallel()
        self.check_optimizer()
        self.check_communication()
        self.check_data()
        for name in ("epochs", "batch_size", "per_rank_batch_size", "checkpoint_steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{option(name)} must be at least 1, not {value}")
        completed(self.model, self.model_options)
        if not self.timeout_s > 0:
            raise UserError(f"--timeout-s must be positive, not {self.timeout_s}")
        if self.autocast != "none" and self.dtype != "float32":
            raise UserError(
                f"--autocast {self.autocast} takes the place of float32 where that is safe, and "
                f"--dtype is {self.dtype}: leave one of them out"
            )
        if self.seed < 0:
            raise UserError(f"--seed must not be negative, not {self.seed}")
        if self.batch_size is not None and self.per_rank_batch_size is not None:
            raise UserError(
                f"--batch-size {self.batch_size} and --per-rank-batch-size "
                f"{self.per_rank_batch_size} exclude each other: give the global or the local one"
            )

    @property
    def model_options(self) -> ModelOptions:
        return ModelOptions(width=self.width, layers=self.layers, heads=self.heads)

    @property
    def default_batch_size(self) -> int:
        return GPT_BATCH_SIZE if self.model == "gpt" else DEFAULT_BATCH_SIZE

    def global_batch_size(self, ranks: int) -> int:
        """Samples an update over `ranks` ranks; raises UserError when a rank would have none."""
        parts = self.data_parts(ranks)
        if self.per_rank_batch_size is not None:
            return self.per_rank_batch_size * parts
        size = self.default_batch_size if self.batch_size is None else self.batch_size
        if size < parts:
            raise UserError(
                f"a global batch of {size} cannot be split over {parts} ranks: "
                f"use --batch-size {parts} or more"
            )
        return size

    def learning_rate(self, global_batch_size: int) -> float:
        """The rate in use. Linear: Goyal et al. 2017, arXiv:1706.02677; square root: Krizhevsky
        2014, arXiv:1404.5997."""
        exponent = {"none": 0.0, "linear": 1.0, "sqrt": 0.5}[self.lr_rule]
        return self.lr * math.pow(global_batch_size / self.default_batch_size, exponent)

    def as_record(self) -> dict[str, object]:
        """The options as plain values, for `run.json`."""
        return {k: str(v) if isinstance(v, Path) else v for k, v in asdict(self).items()}

    @classmethod
    def from_record(cls, record: dict[str, object]) -> TrainConfig:
        """The inverse of `as_record`."""
        paths = ("data_root", "data", "stage", "checkpoint_dir", "resume", "run_dir")
        values: dict[str, Any] = {
            k: Path(str(v)) if k in paths and v is not None else v for k, v in record.items()
        }
        if "lr_milestones" in values:
            values["lr_milestones"] = tuple(values["lr_milestones"])
        return cls(**values)
