"""The survival study: one training, undisturbed and with faults, in every way to go on after them.

Every run of a seed makes the same updates, so the bits at the end and the loss of every step can be
compared, and all that differs is time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec
from rich.console import Console

from phalanx.errors import JobLostError, RunStoppedError, UserError
from phalanx.jobs.launch_program import Launch, program_words
from phalanx.jobs.live_line import LiveLine
from phalanx.jobs.program_job import ProgramJob
from phalanx.jobs.ranks import RankRequest
from phalanx.jobs.restarts import Attempt, Resumption, supervise
from phalanx.jobs.survival import check_survival
from phalanx.records.configuration import check_counts, check_positive, check_values
from phalanx.run.fault_schedule import INJECT
from phalanx.study.epoch_lines import EpochLines
from phalanx.study.options import StudyOptions
from phalanx.study.run import StudyRun, StudyRuns, environment_of
from phalanx.train.survival_options import DisturbedTraining

STEPS, QUICK_STEPS = 1_200, 160
FAULT_S, QUICK_FAULT_S = 15.0, 4.0
SEEDS, QUICK_SEEDS = (0, 1, 2), (0,)
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
class SurvivalConfig(StudyOptions):
    """Options of the survival study. The defaults take some ten minutes on two cores."""

    ways: tuple[WayName, ...] = tuple(WAYS)
    """`undisturbed`: no faults; `in-place`: ranks are killed, and the others go on, with spares
    (--survive --spares);
    `stops`: ranks are stopped for good, and killed after a while (--survive --patience);
    `restarts`: ranks are killed, and all are started again from a checkpoint (--restarts);
    `preemption`: a rank gets SIGTERM, all save and stop, and are started again."""

    seeds: tuple[int, ...] | None = None
    """Every run is repeated with each seed, of the training as of its faults. Default: 0 1 2, or 0
    with --quick."""

    quick: bool = False
    """One seed, a few seconds a run, a fault every 4 s."""

    fault_s: float | None = None
    """Mean time between two faults. Default: 15, or 4 with --quick."""

    steps: int | None = None
    """Updates of a run. Default: 1,200, or 160 with --quick."""

    ranks: int = 4
    """Ranks that every run begins with."""

    spares: int = 4
    """`in-place`: ranks that wait to take the places of those that die; 0: fewer ranks go on."""

    patience_s: float = 1.0
    """`stops`: time for which a rank may keep the others waiting."""

    checkpoint_steps: int = 20
    """`restarts`: steps of an epoch after which a checkpoint is written, again and again."""

    width: int = 512
    """Hidden units of the `mlp` that is trained."""

    batch_size: int = 1_024
    """Global batch size, summed over all ranks: with the width it decides the time of a step."""

    micro_batches: int = 8
    """Micro-batches of each batch, whatever the ranks."""

    train_samples: int = 59_392
    """Training samples of an epoch."""

    lr: float = 1e-3
    """Learning rate of AdamW."""

    timeout_s: float = 60.0
    """Seconds that ranks wait for each other before their run counts as failed."""

    def __post_init__(self) -> None:
        check_values(self, "ways", "seeds")
        check_counts(self, 2, "ranks")
        check_counts(self, 0, "spares")
        check_counts(self, 1, "steps", "checkpoint_steps", "width", "batch_size", "micro_batches")
        check_positive(self, "fault_s", "patience_s", "lr", "timeout_s")
        if not self.ranks <= self.micro_batches <= self.batch_size <= self.train_samples:
            raise UserError(
                f"--ranks {self.ranks}, --micro-batches {self.micro_batches}, --batch-size "
                f"{self.batch_size} and --train-samples {self.train_samples}: each must be at "
                "least the one before"
            )

    @property
    def mean_s(self) -> float:
        """Mean time between two faults."""
        return self.fault_s or (QUICK_FAULT_S if self.quick else FAULT_S)

    @property
    def num_steps(self) -> int:
        return self.steps or (QUICK_STEPS if self.quick else STEPS)

    @property
    def all_seeds(self) -> tuple[int, ...]:
        return self.seeds or (QUICK_SEEDS if self.quick else SEEDS)


@dataclass(frozen=True, kw_only=True)
class SurvivalRun(StudyRun):
    """A launch of the training, disturbed or not."""

    config: DisturbedTraining
    way: WayName
    study: SurvivalConfig

    @property
    def faults(self) -> str:
        """Faults as `--inject` has them; empty for none."""
        fault = WAYS[self.way].fault or ""
        return fault.format(mean_s=self.study.mean_s, seed=self.config.seed)

    @property
    def options(self) -> Mapping[str, object]:
        own: dict[str, object] = {"way": self.way, "ranks": self.study.ranks, "inject": self.faults}
        if self._num_spares:
            own["spares"] = self._num_spares
        if WAYS[self.way].has_patience:
            own["patience"] = self.study.patience_s
        return {**super().options, **own}

    @property
    def mpi_ranks(self) -> int:
        return self.study.ranks + self._num_spares

    @property
    def _num_spares(self) -> int:
        return self.study.spares if WAYS[self.way].has_spares else 0

    @property
    def _ranks(self) -> RankRequest:
        survives = WAYS[self.way].survives
        number, spares = self.study.ranks, self._num_spares
        return RankRequest(ranks=number, threads=1, spares=spares, survive=survives)

    def check(self) -> None:
        ranks = self._ranks
        if ranks.survive:
            check_survival(ranks.mpi, os.environ)

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
                ranks=self._ranks,
                output=lines,
                patience_s=self.study.patience_s if way.has_patience else None,
            )
            job = _Resumed(ProgramJob(launch=launch, is_supervised=way.restarts))
            supervise(job, folder, self.study.ranks, RESTARTS_AN_HOUR if way.restarts else 0)


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


def runs_of(study: SurvivalConfig) -> StudyRuns:
    """Return every run, seed after seed, and the ways that the MPI at hand does not allow.

    Raises: UserError when there is no MPI, or nothing to run.
    """
    left_out = dict[str, str]()
    for way in study.ways:
        try:
            _run_of(study, way, 0).check()
        except UserError as error:
            left_out[way] = str(error).splitlines()[0]
    possible = [way for way in study.ways if way not in left_out]
    if not possible:
        raise UserError(f"there is nothing to run: {next(iter(left_out.values()))}")
    runs = [_run_of(study, way, seed) for seed in study.all_seeds for way in possible]
    return StudyRuns(runs=runs, left_out=left_out)


def _run_of(study: SurvivalConfig, way: WayName, seed: int) -> SurvivalRun:
    return SurvivalRun(
        name=f"{way}-s{seed}",
        way=way,
        study=study,
        config=DisturbedTraining(
            **study.passed_on("width", "batch_size", "micro_batches", "train_samples", "lr"),
            steps=study.num_steps,
            seed=seed,
            checkpoint_steps=study.checkpoint_steps if WAYS[way].restarts else None,
        ),
    )
