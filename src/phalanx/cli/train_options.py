"""The options of a training run, in the panels under which `--help` shows them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from phalanx.parallel.mesh_options import (
    BackendOptions,
    PipelineOptions,
    ShardOptions,
    TensorOptions,
)
from phalanx.parallel.replica_options import LocalOptions, MpiOptions, ServerOptions
from phalanx.train.config import TrainConfig
from phalanx.train.data_options import DataOptions
from phalanx.train.optimizer_options import OptimizerOptions
from phalanx.train.parallel_options import CommunicationOptions, ParallelOptions
from phalanx.train.training_options import CheckpointOptions, TrainingOptions


def _panel(title: str, place: int) -> Parameter:
    return Parameter(
        name="*", group=Group(title, sort_key=place), consume_multiple=True, negative_iterable=()
    )


MODEL = _panel("Model and run", 1)
DATA = _panel("Data", 2)
OPTIMIZER = _panel("Optimizer", 3)
PARALLELISM = _panel("Parallelism", 4)
COMMUNICATION = _panel("Communication", 5)
CHECKPOINTS = _panel("Checkpoints and records", 6)

CONFIG_HELP = (
    'File of options, one per line, in TOML (`model = "cnn"`) or YAML; the command line '
    "overrides it."
)
CONFIG_FILE_GROUP = Group("Configuration file", sort_key=7)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """All options of a training run, of every strategy."""

    training: Annotated[TrainingOptions, MODEL] = field(default_factory=TrainingOptions)
    data: Annotated[DataOptions, DATA] = field(default_factory=DataOptions)
    optimizer: Annotated[OptimizerOptions, OPTIMIZER] = field(default_factory=OptimizerOptions)
    parallel: Annotated[ParallelOptions, PARALLELISM] = field(default_factory=ParallelOptions)
    server: Annotated[ServerOptions, PARALLELISM] = field(default_factory=ServerOptions)
    local: Annotated[LocalOptions, PARALLELISM] = field(default_factory=LocalOptions)
    backend: Annotated[BackendOptions, PARALLELISM] = field(default_factory=BackendOptions)
    shard: Annotated[ShardOptions, PARALLELISM] = field(default_factory=ShardOptions)
    pipeline: Annotated[PipelineOptions, PARALLELISM] = field(default_factory=PipelineOptions)
    tensor: Annotated[TensorOptions, PARALLELISM] = field(default_factory=TensorOptions)
    mpi: Annotated[MpiOptions, COMMUNICATION] = field(default_factory=MpiOptions)
    communication: Annotated[CommunicationOptions, COMMUNICATION] = field(
        default_factory=CommunicationOptions
    )
    checkpoints: Annotated[CheckpointOptions, CHECKPOINTS] = field(
        default_factory=CheckpointOptions
    )

    def config(self) -> TrainConfig:
        """Return the options as one config. Raises: UserError for invalid values."""
        groups = vars(self).values()
        options = {name: value for group in groups for name, value in vars(group).items()}
        return TrainConfig.from_options(**options)


ConfigFile = Annotated[
    Path | None, Parameter(name="--config", help=CONFIG_HELP, group=CONFIG_FILE_GROUP)
]
Options = Annotated[RunOptions, Parameter(name="*")]
"""Options of every command that trains."""
OPTIONS = RunOptions()
"""The defaults; frozen."""
