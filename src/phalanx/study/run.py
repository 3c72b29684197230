"""One run of a study: a name, and how it is made."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from rich.console import Console

from phalanx.jobs.allocation import HOSTS
from phalanx.jobs.live_line import LiveLine
from phalanx.jobs.record import RUNS
from phalanx.records.configuration import RecordedOptions
from phalanx.records.schema import JobRecord, Run
from phalanx.train.config import DEFAULTS, TrainConfig
from phalanx.train.job import launch_of
from phalanx.train.run import complete

COUNT = {"PHALANX_COUNT": "1"}
"""Environment of ranks that count what they send and receive."""

WITHOUT_MPI = ("sequential", "gloo")
"""Strategies that need none."""


@dataclass(frozen=True, kw_only=True)
class StudyRun(ABC):
    """One job of a study."""

    record: ClassVar[type[JobRecord]] = Run
    """Kind of record that the run leaves."""

    name: str
    """Name of the run's folder within the study."""

    config: Any
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of its ranks, besides ours."""
    point: Mapping[str, object] = field(default_factory=dict)
    """Place in the grid of a user's study."""

    @property
    def options(self) -> Mapping[str, object]:
        """All options of the run, defaults included."""
        return {**self.config.as_record(), **self.environment, **self.point}

    @property
    def mpi_ranks(self) -> int:
        """Number of the ranks that MPI starts for it; 0 for none."""
        ranks, strategy = self.options.get("ranks"), self.options.get("strategy")
        return ranks if isinstance(ranks, int) and strategy not in WITHOUT_MPI else 0

    @abstractmethod
    def check(self) -> None:
        """Raises: UserError when its options do not fit each other, the data or this machine."""

    @abstractmethod
    def make(self, folder: Path, *, study: str, console: Console, label: str) -> None:
        """Execute the run as a separate job, with its records in `folder`, which must not exist
        yet.

        Raises: UserError when its options do not fit, RunFailedError when a rank failed.
        """


@dataclass(frozen=True, kw_only=True)
class TrainingRun(StudyRun):
    """`phalanx train`."""

    config: TrainConfig

    def check(self) -> None:
        with environment_of(self.environment):
            complete(self.config, None)

    def make(self, folder: Path, *, study: str, console: Console, label: str) -> None:
        command = command_words("train", self.config.as_record(), DEFAULTS)
        with environment_of(self.environment):
            config, _ = complete(self.config, None)
            with LiveLine(console, label) as line:
                launch_of(config, line, command=command, study=study).run(folder)


@dataclass(frozen=True, kw_only=True)
class StudyRuns:
    """Runs of a study, where some are impossible."""

    runs: Sequence[StudyRun] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Names of runs that cannot be, and why."""


def command_words(
    name: str, options: Mapping[str, object], defaults: Mapping[str, object]
) -> list[str]:
    """The `phalanx` command that makes this run alone, with all non-default options."""
    words = ["phalanx", *name.split()]
    for option, value in options.items():
        if value == defaults[option]:
            continue
        word = f"--{option.replace('_', '-')}"
        match value:
            case True:
                words.append(word)
            case False:
                words.append(word.replace("--", "--no-", 1))
            case list() | tuple():
                words += [word, *map(str, value)]
            case _:
                words += [word, str(value)]
    return words


def own_command(name: str, config: RecordedOptions) -> list[str]:
    """Return `command_words` of options whose defaults are those of their class."""
    return command_words(name, config.as_record(), type(config)().as_record())


def named_hosts() -> list[str]:
    """Return what the records of a study depend on besides its options: nodes that are named."""
    return [os.environ[HOSTS]] if os.environ.get(HOSTS) else []


def study_folder(config: Any, *words: str, found: Sequence[str] = ()) -> Path:
    """Return `--study-dir`, or a folder under runs/ that is the same for the same options.

    words: of its name. found: what else the records depend on.
    """
    if config.study_dir is not None:
        return Path(config.study_dir)
    texts = {name: str(value) for name, value in asdict(config).items()}
    found = [*found, *named_hosts()]
    encoded = msgspec.json.encode([texts, *found] if found else texts, order="sorted")
    return RUNS / "-".join([*words, hashlib.sha256(encoded).hexdigest()[:6]])


@contextmanager
def environment_of(added: Mapping[str, str]) -> Iterator[None]:
    """Add `added` to this process's environment, for the processes it starts."""
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
