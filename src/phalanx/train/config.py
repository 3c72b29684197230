"""The options of one training run, validated where they are made. Needs neither torch nor MPI."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from phalanx.errors import UserError
from phalanx.models.options import ModelName, ModelOptions, completed
from phalanx.records.schema import LearningRateRule, LearningRateSchedule
from phalanx.train.split import SplitOptions, option

DatasetName = Literal["auto", "digits", "mnist", "fashion", "cifar10", "text"]
OptimizerName = Literal["adam", "adamw", "sgd"]
DtypeName = Literal["float32", "float64"]

DEFAULT_BATCH_SIZE = 128
GPT_BATCH_SIZE = 32
"""A sample of text asks for as many predictions as it has characters, and there are few samples:
with 128 a run has too few steps to learn much."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig(SplitOptions):
    """What to train and how to split it."""

    model: ModelName = "mlp"
    """The network: `mlp` 784-256-128-10, `cnn` two convolutions, `rnn` an LSTM over 28 rows,
    `resnet` residual blocks, `gpt` a transformer for text."""

    width: int | None = None
    """Hidden units of the `mlp` (256), channels of the `resnet` (16), width of the `gpt` (128)."""

    layers: int | None = None
    """Blocks of the `gpt` (4) or of each stage of the `resnet` (1)."""

    heads: int | None = None
    """Attention heads of the `gpt` (4)."""

    dataset: DatasetName = "auto"
    """`mnist`, the embedded `digits` or `text`, `fashion` or `cifar10` where their files are, or
    `auto`: text for gpt, else mnist where it is found, digits otherwise."""

    data_root: Path | None = None
    """Folder that holds the data sets. Default: $PHALANX_DATA, then the user's cache folder."""

    epochs: int = 5
    """Passes over the training data."""

    batch_size: int | None = None
    """Global batch: samples an update, over all ranks together. Default: 128, and 32 for gpt."""

    per_rank_batch_size: int | None = None
    """Samples an update on each rank; the global batch then grows with the ranks."""

    lr: float = 1e-3
    """Learning rate of the first step, for the default batch."""

    lr_rule: LearningRateRule = "none"
    """How the learning rate follows the global batch: `none`, `linear` or `sqrt` of batch ÷
    default batch."""

    lr_schedule: LearningRateSchedule = "cosine"
    """How it goes on from there: `cosine` falls to nothing by the last step, or `constant`."""

    optimizer: OptimizerName = "adam"
    """The update rule."""

    momentum: float = 0.9
    """Momentum of `sgd`."""

    weight_decay: float = 0.0
    """Weight decay of the optimizer."""

    seed: int = 0
    """Decides the initial weights and the order of the samples."""

    dtype: DtypeName = "float32"
    """Precision of parameters and arithmetic."""

    train_samples: int | None = None
    """Train on the first so many samples only. Default: all."""

    validation_samples: int | None = None
    """Evaluate on the first so many validation samples only. Default: all."""

    checkpoint_dir: Path | None = None
    """Where a checkpoint is written after every epoch. Default: none is written."""

    resume: Path | None = None
    """Go on from this checkpoint, or from the newest one in this folder."""

    run_dir: Path | None = None
    """Folder of the run's records. Default: a new one under runs/train."""

    timeout_s: float = 300.0
    """Give up when ranks have waited this long for each other, and say who is missing."""

    def __post_init__(self) -> None:
        self.check_split()
        for name in ("epochs", "batch_size", "per_rank_batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{option(name)} must be at least 1, not {value}")
        completed(self.model, self.model_options)
        for name in ("lr", "timeout_s"):
            if not getattr(self, name) > 0:
                raise UserError(f"{option(name)} must be positive, not {getattr(self, name)}")
        for name in ("momentum", "weight_decay", "seed"):
            if not getattr(self, name) >= 0:
                raise UserError(f"{option(name)} must not be negative, not {getattr(self, name)}")
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
        paths = ("data_root", "checkpoint_dir", "resume", "run_dir")
        values = {k: Path(str(v)) if k in paths and v is not None else v for k, v in record.items()}
        return cls(**values)  # type: ignore[arg-type]
