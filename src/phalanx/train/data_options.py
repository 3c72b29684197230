"""Options of the data and of reading it. No torch, no MPI.

Annotations here are objects, not strings: see `parallel_options.py`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from phalanx.errors import UserError
from phalanx.parallel.option_groups import AT_LEAST_ONE, NOT_NEGATIVE, POSITIVE, Needs, ruled

DatasetName = Literal["auto", "digits", "mnist", "fashion", "cifar10", "text"]
Readers = Literal["threads", "processes"]
Damaged = Literal["stop", "skip"]

PACKED = Needs("--data", lambda options: options.data is not None)
STAGED = Needs("--stage", lambda options: options.stage is not None)


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Options of the data and of reading it."""

    dataset: DatasetName = "auto"
    """`mnist`, the embedded `digits` or `text`, `fashion` or `cifar10` where their files are, or
    `auto`: text for gpt, else mnist where it is found, digits otherwise."""

    data_root: Path | None = None
    """Folder that holds the data sets. Default: $PHALANX_DATA, then the user's cache folder."""

    data: Path | None = None
    """A folder made by `phalanx data pack`, in place of --dataset: read while training goes on,
    and as large as one likes."""

    readers: int = ruled(2, NOT_NEGATIVE, PACKED)
    """--data: how many read ahead on each rank; 0: the rank itself reads when it needs a batch."""

    reader_kind: Readers = ruled("threads", PACKED)
    """--data: what reads ahead."""

    prefetch: int = ruled(4, AT_LEAST_ONE, PACKED)
    """--data: batches that may be ready before they are needed, on each rank."""

    cache_mb: float = ruled(0.0, NOT_NEGATIVE, PACKED)
    """--data: megabytes of samples that each rank keeps in memory once it has read them."""

    stage: Path | None = ruled(None, PACKED)
    """--data: folder on the node's own disk to which one rank of each node brings shards first."""

    stage_mb: float | None = ruled(None, POSITIVE, PACKED, STAGED)
    """--stage: megabytes that it may hold; shards that are needed last go. Default: no limit."""

    keep_staged: bool = ruled(False, PACKED, STAGED)
    """--stage: leave what was brought there for the next run. Default: it is removed."""

    shuffle_shards: int | None = ruled(None, POSITIVE, PACKED)
    """--data: number of shards to shuffle within, so that reading stays local. Default: all
    samples at random."""

    augment: bool = ruled(False, PACKED)
    """--data: shift and mirror training images at random, as the readers decode them."""

    damaged: Damaged = ruled("stop", PACKED)
    """--data: what to do with a corrupt sample: `stop` the run, or `skip` and count it."""

    train_samples: int | None = ruled(None, POSITIVE)
    """Number of training samples, the first ones of the data. Default: all."""

    validation_samples: int | None = ruled(None, POSITIVE)
    """Number of validation samples, the first ones of the data. Default: all."""

    final_train_samples: int | None = ruled(None, POSITIVE)
    """Number of training samples on which the final model is evaluated, too. Default: none."""

    @property
    def data_name(self) -> str:
        """Name of the data in logs and records."""
        return self.dataset if self.data is None else self.data.resolve().name

    def check_exclusions(self) -> None:
        """Raise UserError for options that exclude each other."""
        if self.data is not None and self.dataset != "auto":
            raise UserError(
                f"--data {self.data} and --dataset {self.dataset} exclude each other: "
                "give one of them"
            )
        if self.cache_mb and self.reader_kind == "processes":
            raise UserError(
                f"--cache-mb {self.cache_mb:g} and --reader-kind processes exclude each other: "
                "every process would keep samples of its own; take threads"
            )
