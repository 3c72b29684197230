"""The options of a run of the network from scratch, validated where they are made."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from phalanx.errors import UserError
from phalanx.launch.allocation import allocation, max_local_ranks, slots_per_node
from phalanx.launch.cores import usable_cores
from phalanx.records.configuration import RecordedOptions, check_at_least, check_positive
from phalanx.scratch.partition import partition_layers

if TYPE_CHECKING:
    from phalanx.data.datasets.catalog import DatasetChoice

SchemeName = Literal["alone", "server", "library", "ring", "tensor"]
ActivationName = Literal["relu", "sigmoid"]
DatasetName = Literal["auto", "digits", "mnist", "fashion"]
DtypeName = Literal["float32", "float64"]

NUM_PIXELS, NUM_CLASSES = 28 * 28, 10


@dataclass(frozen=True, kw_only=True)
class ScratchConfig(RecordedOptions):
    """Options of a training from scratch."""

    scheme: SchemeName = "ring"
    """`alone` in one process; `library` and `ring`: gradients summed by the MPI library, or by a
    ring written out; `server`: workers and parameter servers; `tensor`: layers cut among ranks."""

    ranks: int | None = None
    """Number of processes. Default: one a core, two at least; 1 for `alone`."""

    servers: int | None = None
    """How many of the ranks are parameter servers, for `server`. Default: 1."""

    hidden: tuple[int, ...] = (128,)
    """Width of each hidden layer."""

    activation: ActivationName = "relu"
    """What comes after each hidden layer."""

    epochs: int = 5
    """Passes over the training data."""

    batch_size: int = 128
    """Global batch size: samples per update, summed over all ranks."""

    lr: float = 0.05
    """Learning rate."""

    momentum: float = 0.9
    """Momentum of the stochastic gradient descent, from 0 to below 1."""

    seed: int = 0
    """Decides the initial weights and the order of the samples."""

    dtype: DtypeName = "float32"
    """Precision of parameters and arithmetic."""

    dataset: DatasetName = "auto"
    """`mnist`, `fashion`, the embedded `digits`, or `auto`: mnist where it is found, or digits."""

    data_root: Path | None = None
    """Folder that holds the data sets. Default: $PHALANX_DATA, then the user's cache folder."""

    train_samples: int | None = None
    """Train on the first so many samples only. Default: all."""

    validation_samples: int | None = None
    """Evaluate on the first so many validation samples only. Default: all."""

    run_dir: Path | None = None
    """Folder of the run's records. Default: a new one under runs/scratch."""

    timeout_s: float = 300.0
    """Give up when ranks have waited this long for each other, and say who is missing."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, "ranks", "servers", "epochs", "batch_size")
        check_at_least(self, 1, "train_samples", "validation_samples")
        check_positive(self, "lr", "timeout_s")
        if not 0 <= self.momentum < 1:
            raise UserError(f"--momentum must be from 0 to below 1, not {self.momentum}")
        if self.seed < 0:
            raise UserError(f"--seed must not be negative, not {self.seed}")
        if any(width < 1 for width in self.hidden):
            listed = " ".join(map(str, self.hidden))
            raise UserError(f"--hidden must be widths of at least 1, not {listed}")
        if self.scheme != "server" and self.servers is not None:
            raise UserError(f"--servers {self.servers} is for --scheme server, not {self.scheme}")
        if self.scheme == "alone" and (self.ranks or 1) != 1:
            raise UserError(
                f"--scheme alone is one process, not {self.ranks} ranks: "
                f"take --scheme library, ring, server or tensor"
            )

    @property
    def sizes(self) -> tuple[int, ...]:
        """Widths of the network, from the pixels to the classes."""
        return (NUM_PIXELS, *self.hidden, NUM_CLASSES)

    @property
    def threads(self) -> int:
        """Compute threads of each rank."""
        assert self.ranks is not None, "complete() comes first"
        return max(1, usable_cores() // max_local_ranks(self.ranks, slots_per_node(os.environ)))


def complete(config: ScratchConfig) -> ScratchConfig:
    """Fill in every default, and find the data.

    Raises: UserError when the options do not fit each other or the data, before anything starts.
    """
    from phalanx.data.datasets.catalog import NUM_TRAIN_SAMPLES, NUM_VALIDATION_SAMPLES

    available = {"train_samples": NUM_TRAIN_SAMPLES, "validation_samples": NUM_VALIDATION_SAMPLES}
    for name, largest in available.items():
        value = getattr(config, name)
        if value is not None and value > largest:
            option = f"--{name.replace('_', '-')}"
            raise UserError(f"{option} must be 1 to {largest}, not {value}")
    config, dataset = _split(config), choose_data(config).name
    assert dataset in ("digits", "mnist", "fashion"), "`auto` chooses between the first two"
    return replace(config, dataset=dataset)


def choose_data(config: ScratchConfig) -> DatasetChoice:
    """Return the data set of `config`, its folder and the reason of the choice."""
    from phalanx.data.datasets.catalog import (
        resolve,  # imported late: slow, and most ranks do not need it
    )

    return resolve(config.dataset, config.data_root)


def _split(config: ScratchConfig) -> ScratchConfig:
    """Return `config` with the number of ranks and servers filled in."""
    if config.scheme == "alone":
        return replace(config, ranks=1)
    nodes = allocation(os.environ)
    slots = sum(nodes.slots) if nodes.is_named else max(2, usable_cores())
    ranks = config.ranks or slots
    workers = ranks
    if config.scheme == "server":
        servers = config.servers or 1
        config, workers = replace(config, servers=servers), ranks - servers
        if workers < 1:
            raise UserError(
                f"--servers {servers} of --ranks {ranks} leaves no worker: "
                f"use --ranks {servers + 1} or more, or fewer --servers"
            )
    if config.scheme == "tensor":
        partition_layers(config.sizes, ranks)
    elif config.batch_size < workers:
        raise UserError(
            f"a global batch of {config.batch_size} cannot be split over {workers} workers: "
            f"use --batch-size {workers} or more"
        )
    return replace(config, ranks=ranks)
