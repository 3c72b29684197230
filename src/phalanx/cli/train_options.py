"""The options of a training run, in the groups under which `--help` shows them."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Group, Parameter

from phalanx.train.communication import CommunicationOptions
from phalanx.train.config import KeepingOptions, TrainConfig, WorkOptions
from phalanx.train.learning import LearningOptions
from phalanx.train.reading import ReadingOptions
from phalanx.train.split import SplitOptions


def _shown_as(title: str, place: int) -> Parameter:
    return Parameter(
        name="*", group=Group(title, sort_key=place), consume_multiple=True, negative_iterable=()
    )


Work = Annotated[WorkOptions, _shown_as("What is trained", 1)]
Reading = Annotated[ReadingOptions, _shown_as("On what", 2)]
Learning = Annotated[LearningOptions, _shown_as("How it learns", 3)]
Split = Annotated[SplitOptions, _shown_as("How the work is split", 4)]
Communication = Annotated[CommunicationOptions, _shown_as("What the ranks send", 5)]
Keeping = Annotated[KeepingOptions, _shown_as("What is kept", 6)]

WORK, READING, LEARNING = WorkOptions(), ReadingOptions(), LearningOptions()
SPLIT, COMMUNICATION, KEEPING = SplitOptions(), CommunicationOptions(), KeepingOptions()
"""The defaults; frozen."""


def config_of(
    *groups: WorkOptions
    | ReadingOptions
    | LearningOptions
    | SplitOptions
    | CommunicationOptions
    | KeepingOptions,
) -> TrainConfig:
    """Raises: UserError for values that no run could use."""
    return TrainConfig(**{name: value for group in groups for name, value in vars(group).items()})
