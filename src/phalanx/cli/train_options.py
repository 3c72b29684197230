"""The options of a training run, in the panels under which `--help` shows them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from phalanx.cli import strategy_help
from phalanx.cli.strategy_help import strategy_panel
from phalanx.parallel.options import (
    BackendOptions,
    LocalOptions,
    MpiOptions,
    PipelineOptions,
    ServerOptions,
    ShardOptions,
    TensorOptions,
)
from phalanx.train.config import TrainConfig
from phalanx.train.options import (
    CheckpointOptions,
    CommunicationOptions,
    DataOptions,
    OptimizerOptions,
    ParallelOptions,
    TrainingOptions,
)


def _panel(group: Group) -> Parameter:
    return Parameter(name="*", group=group, consume_multiple=True, negative_iterable=())


MODEL = _panel(Group("Model and run", sort_key=1))
DATA = _panel(Group("Data", sort_key=2))
OPTIMIZER = _panel(Group("Optimizer", sort_key=3))
PARALLELISM = _panel(Group("Parallelism", sort_key=strategy_help.PARALLELISM))
MPI = _panel(strategy_panel("mpi", place=1))
SERVER = _panel(strategy_panel("server", place=2))
LOCAL = _panel(strategy_panel("local", place=3))
MESH = _panel(strategy_panel("zero", "tensor", "pipeline", "mesh", place=4))
SHARD = _panel(strategy_panel("zero", "mesh", place=5))
PIPELINE = _panel(strategy_panel("pipeline", "mesh", place=6, also_bitwise=True))
TENSOR = _panel(strategy_panel("tensor", "mesh", place=7))
COMMUNICATION = _panel(Group("Communication", sort_key=5))
CHECKPOINTS = _panel(Group("Checkpoints and records", sort_key=6))

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
    server: Annotated[ServerOptions, SERVER] = field(default_factory=ServerOptions)
    local: Annotated[LocalOptions, LOCAL] = field(default_factory=LocalOptions)
    backend: Annotated[BackendOptions, MESH] = field(default_factory=BackendOptions)
    shard: Annotated[ShardOptions, SHARD] = field(default_factory=ShardOptions)
    pipeline: Annotated[PipelineOptions, PIPELINE] = field(default_factory=PipelineOptions)
    tensor: Annotated[TensorOptions, TENSOR] = field(default_factory=TensorOptions)
    mpi: Annotated[MpiOptions, MPI] = field(default_factory=MpiOptions)
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
