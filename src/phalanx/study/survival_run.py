"""One run of the survival study: a launch of the training, and the way in which it goes on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec
from rich.console import Console

from phalanx.errors import JobLostError, RunStoppedError
from phalanx.jobs.installation import find_mpi
from phalanx.jobs.launch_program import Launch, program_words
from phalanx.jobs.live_line import LiveLine
from phalanx.jobs.program_job import ProgramJob
from phalanx.jobs.restarts import Attempt, Resumption, supervise
from phalanx.jobs.survival import check_survival
from phalanx.run.fault_schedule import INJECT
from phalanx.study.epoch_lines import EpochLines
from phalanx.study.planned import PlannedRun, environment_of
from phalanx.train.survival_options import DisturbedTraining

PROGRAM = "phalanx.train.disturbed_program"
CHECKPOINTS = "checkpoints"
RESTARTS_AN_HOUR = 1_000
"""More than any run has: each start makes new steps, or the third in a row is the last."""

WayName = Literal["undisturbed", "in-place", "stops", "restarts", "preemption"]


@dataclass(frozen=True, kw_only=True)
class Way:
    """A kind of faults, and how a run goes on after them."""

    fault: str | None = None
    """Fault as `--inject` has it, with the place of mean time and seed; None for no faults."""
    survives: bool = False
    """The ranks that are left continue in place."""
    has_spares: bool = False
    """Spares take the places of ranks that die."""
    has_patience: bool = False
    restarts: bool = False
    """The run starts again from checkpoints."""


WAYS: Mapping[WayName, Way] = {
    "undisturbed": Way(),
    "in-place": Way(fault="kill:{mean_s:g}:{seed}", survives=True, has_spares=True),
    "stops": Way(fault="stop:{mean_s:g}:{seed}:never", survives=True, has_patience=True),
    "restarts": Way(fault="kill:{mean_s:g}:{seed}", restarts=True),
    "preemption": Way(fault="terminate:{mean_s:g}:{seed}", restarts=True),
}


@dataclass(frozen=True, kw_only=True)
class SurvivalRun(PlannedRun):
    """A launch of the training, disturbed or not."""

    config: DisturbedTraining
    way: WayName
    ranks: int
    spares: int
    """Ranks beside them, of the ways that have such."""
    patience_s: float
    mean_s: float
    """Mean time between two faults."""

    @property
    def faults(self) -> str:
        """Faults as `--inject` has them; empty for none."""
        fault = WAYS[self.way].fault or ""
        return fault.format(mean_s=self.mean_s, seed=self.config.seed)

    @property
    def options(self) -> Mapping[str, object]:
        own: dict[str, object] = {"way": self.way, "ranks": self.ranks, "inject": self.faults}
        if self._num_spares:
            own["spares"] = self._num_spares
        if WAYS[self.way].has_patience:
            own["patience"] = self.patience_s
        return {**super().options, **own}

    @property
    def mpi_ranks(self) -> int:
        return self.ranks + self._num_spares

    @property
    def _num_spares(self) -> int:
        return self.spares if WAYS[self.way].has_spares else 0

    def check(self) -> None:
        mpi = find_mpi(os.environ)
        if WAYS[self.way].survives:
            check_survival(mpi, os.environ)

    def make(self, folder: Path, *, study: str, console: Console, label: str) -> None:  # noqa: ARG002
        self.check()
        way, config = WAYS[self.way], self.config
        if way.restarts:
            config = replace(config, checkpoint_dir=(folder / CHECKPOINTS).absolute())
        text = msgspec.json.encode(config.as_record()).decode()
        lines = EpochLines(None)
        with environment_of({INJECT: self.faults}), LiveLine(console, label) as live:
            lines.on_line = live.draw
            launch = Launch(
                words=program_words(("-m", PROGRAM, text)),
                ranks=self.ranks,
                spares=self._num_spares,
                threads=1,
                mpi=find_mpi(os.environ),
                output=lines,
                survive=way.survives,
                patience_s=self.patience_s if way.has_patience else None,
            )
            job = _Resumed(ProgramJob(launch=launch, is_supervised=way.restarts))
            supervise(job, folder, self.ranks, RESTARTS_AN_HOUR if way.restarts else 0)


class _Resumed:
    """A job that is started again also where it has stopped as asked, after a checkpoint."""

    def __init__(self, job: ProgramJob) -> None:
        self._job = job

    def start(self, attempt: Attempt) -> list[int]:
        """Run the ranks to their end, or until they were asked to stop."""
        try:
            return self._job.start(attempt)
        except RunStoppedError as stopped:
            raise JobLostError(str(stopped)) from stopped

    def prepare(self, attempt: Attempt, former: Attempt) -> Resumption:
        """Decide from where the ranks go on."""
        return self._job.prepare(attempt, former)
