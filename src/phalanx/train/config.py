"""The options of one training run, validated where they are made. Needs neither torch nor MPI."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from phalanx.errors import UserError
from phalanx.records.schema import LearningRateRule, LearningRateSchedule

ModelName = Literal["mlp", "cnn", "rnn"]
DatasetName = Literal["auto", "digits", "mnist"]
OptimizerName = Literal["adam", "adamw", "sgd"]
Strategy = Literal["sequential", "mpi", "shared", "gloo"]
AllReduceMethod = Literal["auto", "shared", "library"]
DtypeName = Literal["float32", "float64"]

DEFAULT_BATCH_SIZE = 128
OVER_MPI: tuple[Strategy, ...] = ("mpi", "shared")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """What to train and how to split it."""

    model: ModelName = "mlp"
    """The network: `mlp` 784-256-128-10, `cnn` two convolutions, `rnn` an LSTM over 28 rows."""

    dataset: DatasetName = "auto"
    """`mnist`, the embedded `digits`, or `auto`: mnist where it is found, digits otherwise."""

    data_root: Path | None = None
    """Folder that holds the data sets. Default: $PHALANX_DATA, then the user's cache folder."""

    strategy: Strategy = "sequential"
    """`sequential` in one process, `mpi` ranks over MPI, `shared` ranks over MPI with parameters
    and optimizer state that they share, `gloo` ranks under PyTorch's DDP."""

    ranks: int | None = None
    """Number of processes. Default: as many as the launcher started, else one a core."""

    threads: int | None = None
    """Compute threads of each rank. Default: cores ÷ ranks of the node."""

    all_reduce: AllReduceMethod = "auto"
    """How `mpi` sums gradients: `shared` memory of the node, the MPI `library`, or `auto`."""

    epochs: int = 5
    """Passes over the training data."""

    batch_size: int | None = None
    """Global batch: samples an update, over all ranks together. Default: 128."""

    per_rank_batch_size: int | None = None
    """Samples an update on each rank; the global batch then grows with the ranks."""

    lr: float = 1e-3
    """Learning rate of the first step, for the default batch of 128."""

    lr_rule: LearningRateRule = "none"
    """How the learning rate follows the global batch: `none`, `linear` or `sqrt` of batch ÷ 128."""

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
        for name in ("ranks", "threads", "batch_size", "per_rank_batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{_option(name)} must be at least 1, not {value}")
        if self.epochs < 1:
            raise UserError(f"--epochs must be at least 1, not {self.epochs}")
        for name in ("lr", "timeout_s"):
            if not getattr(self, name) > 0:
                raise UserError(f"{_option(name)} must be positive, not {getattr(self, name)}")
        for name in ("momentum", "weight_decay", "seed"):
            if not getattr(self, name) >= 0:
                raise UserError(f"{_option(name)} must not be negative, not {getattr(self, name)}")
        if self.batch_size is not None and self.per_rank_batch_size is not None:
            raise UserError(
                f"--batch-size {self.batch_size} and --per-rank-batch-size "
                f"{self.per_rank_batch_size} exclude each other: give the global or the local one"
            )
        if self.strategy == "sequential" and (self.ranks or 1) != 1:
            raise UserError(
                f"--strategy sequential runs in one process, not on {self.ranks} ranks; "
                f"use --strategy mpi --ranks {self.ranks}, or --threads for more cores"
            )

    def global_batch_size(self, ranks: int) -> int:
        """Samples an update over `ranks` ranks; raises UserError when a rank would have none."""
        if self.per_rank_batch_size is not None:
            return self.per_rank_batch_size * ranks
        size = DEFAULT_BATCH_SIZE if self.batch_size is None else self.batch_size
        if size < ranks:
            raise UserError(
                f"a global batch of {size} cannot be split over {ranks} ranks: "
                f"use --batch-size {ranks} or more"
            )
        return size

    def learning_rate(self, global_batch_size: int) -> float:
        """The rate in use. Linear: Goyal et al. 2017, arXiv:1706.02677; square root: Krizhevsky
        2014, arXiv:1404.5997."""
        exponent = {"none": 0.0, "linear": 1.0, "sqrt": 0.5}[self.lr_rule]
        return self.lr * math.pow(global_batch_size / DEFAULT_BATCH_SIZE, exponent)

    def as_record(self) -> dict[str, object]:
        """The options as plain values, for `run.json`."""
        return {k: str(v) if isinstance(v, Path) else v for k, v in asdict(self).items()}

    @classmethod
    def from_record(cls, record: dict[str, object]) -> TrainConfig:
        """The inverse of `as_record`."""
        paths = ("data_root", "checkpoint_dir", "resume", "run_dir")
        values = {k: Path(str(v)) if k in paths and v is not None else v for k, v in record.items()}
        return cls(**values)  # type: ignore[arg-type]


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
