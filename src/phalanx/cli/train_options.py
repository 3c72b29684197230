"""The options of a training run, in the groups under which `--help` shows them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from phalanx.train.communication_options import CommunicationOptions
from phalanx.train.config import CheckpointOptions, TrainConfig, TrainingOptions
from phalanx.train.data_options import DataOptions
from phalanx.train.optimizer_options import OptimizerOptions
from phalanx.train.parallel_options import ParallelOptions


def _shown_as(title: str, place: int) -> Parameter:
    return Parameter(
        name="*", group=Group(title, sort_key=place), consume_multiple=True, negative_iterable=()
    )


Work = Annotated[TrainingOptions, _shown_as("Model and run", 1)]
Reading = Annotated[DataOptions, _shown_as("Data", 2)]
Learning = Annotated[OptimizerOptions, _shown_as("Optimizer", 3)]
Split = Annotated[ParallelOptions, _shown_as("Parallelism", 4)]
Communication = Annotated[CommunicationOptions, _shown_as("Communication", 5)]
Keeping = Annotated[CheckpointOptions, _shown_as("Checkpoints and records", 6)]


CONFIG_HELP = (
    'File of options, one per line, in TOML (`model = "cnn"`) or YAML; the command line '
    "overrides it."
)
CONFIG_FILE_GROUP = Group("Configuration file", sort_key=7)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """All options of a training run."""

    work: Work = field(default_factory=TrainingOptions)
    reading: Reading = field(default_factory=DataOptions)
    learning: Learning = field(default_factory=OptimizerOptions)
    split: Split = field(default_factory=ParallelOptions)
    communication: Communication = field(default_factory=CommunicationOptions)
    keeping: Keeping = field(default_factory=CheckpointOptions)

    def config(self) -> TrainConfig:
        """Return the options as one config. Raises: UserError for invalid values."""
        groups = vars(self).values()
        return TrainConfig(
            **{name: value for group in groups for name, value in vars(group).items()}
        )


ConfigFile = Annotated[
    Path | None, Parameter(name="--config", help=CONFIG_HELP, group=CONFIG_FILE_GROUP)
]
Options = Annotated[RunOptions, Parameter(name="*")]
"""Options of every command that trains."""
OPTIONS = RunOptions()
"""The defaults; frozen."""
