"""The survival study: one training, undisturbed and with faults, in every way to go on after them.

Every run of a seed makes the same updates, so the bits at the end and the loss of every step can be
compared, and all that differs is time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
from rich.console import Console

from phalanx.errors import UserError
from phalanx.jobs.launch_program import launch_program, program_words
from phalanx.jobs.live_line import LiveLine
from phalanx.launch.installation import find_mpi
from phalanx.launch.survival import check_survival
from phalanx.records.configuration import check_at_least, check_positive, check_values
from phalanx.run.defaults import RUN_DIR
from phalanx.run.fault_schedule import INJECT
from phalanx.study.parallelism import StudyPlan
from phalanx.study.planned import PlannedRun, environment_of
from phalanx.train.data_options import DatasetName
from phalanx.train.survival_options import DisturbedTraining

PROGRAM = "phalanx.train.disturbed_program"
WayName = Literal["undisturbed", "in-place"]
WAYS: tuple[WayName, ...] = ("undisturbed", "in-place")
STEPS, QUICK_STEPS = 1_200, 160
FAULT_S, QUICK_FAULT_S = 15.0, 2.0
SEEDS, QUICK_SEEDS = (0, 1, 2), (0,)


@dataclass(frozen=True, kw_only=True)
class SurvivalConfig:
    """Options of the survival study. The defaults take some ten minutes on two cores."""

    ways: tuple[WayName, ...] = WAYS
    """`undisturbed`: no faults; `in-place`: ranks die, and the others go on (--survive)."""

    seeds: tuple[int, ...] | None = None
    """Every run is repeated with each seed, of the training as of its faults. Default: 0 1 2, or 0
    with --quick."""

    quick: bool = False
    """One seed, a few seconds a run, a fault every 2 s."""

    fault_s: float | None = None
    """Mean time between two faults. Default: 15, or 2 with --quick."""

    steps: int | None = None
    """Updates of a run. Default: 1,200, or 160 with --quick."""

    ranks: int = 4
    """Ranks that every run begins with."""

    width: int = 512
    """Hidden units of the `mlp` that is trained."""

    batch_size: int = 1_024
    """Samples an update over all ranks together: with the width it decides the time of a step."""

    micro_batches: int = 8
    """Into which each batch is cut, whatever the ranks."""

    train_samples: int = 16_384
    """Training samples of an epoch."""

    lr: float = 1e-3
    """Learning rate of AdamW."""

    dataset: DatasetName = "auto"
    """`mnist`, the embedded `digits`, or `auto`: mnist where it is found, digits otherwise."""

    data_root: Path | None = None
    """Folder that holds the data sets. Default: $PHALANX_DATA, then the user's cache folder."""

    study_dir: Path | None = None
    """Folder of the study. Default: runs/survival-…, the same for the same options, so that an
    interrupted study goes on when its command is given again."""

    timeout_s: float = 60.0
    """A run whose ranks have waited this long for each other has failed."""

    def __post_init__(self) -> None:
        check_values(self, "ways", "seeds")
        check_at_least(self, 2, "ranks")
        check_at_least(self, 1, "steps", "width", "batch_size", "micro_batches", "train_samples")
        check_positive(self, "fault_s", "lr", "timeout_s")
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
class SurvivalRun(PlannedRun):
    """A launch of the training, disturbed or not."""

    config: DisturbedTraining
    way: WayName
    ranks: int
    faults: tuple[str, ...] = ()
    """As `--inject` has them."""

    @property
    def options(self) -> Mapping[str, object]:
        return {**super().options, "way": self.way, "ranks": self.ranks, "inject": self.faults}

    @property
    def mpi_ranks(self) -> int:
        return self.ranks

    @property
    def survives(self) -> bool:
        return self.way == "in-place"

    def check(self) -> None:
        mpi = find_mpi(os.environ)
        if self.survives:
            check_survival(mpi, os.environ)

    def make(self, folder: Path, *, study: str, console: Console, label: str) -> None:  # noqa: ARG002
        self.check()
        text = msgspec.json.encode(self.config.as_record()).decode()
        with environment_of({INJECT: " ".join(self.faults)}), LiveLine(console, label) as live:
            launch_program(
                folder,
                program_words(("-m", PROGRAM, text)),
                ranks=self.ranks,
                threads=1,
                mpi=find_mpi(os.environ),
                output=_LastLine(live),
                environment={RUN_DIR: str(folder.absolute())},
                survive=self.survives,
            )


class _LastLine:
    """Output of rank 0, of which the last line is drawn."""

    def __init__(self, live: LiveLine) -> None:
        self._live = live

    def write(self, new: bytes, /) -> None:
        """Draw the last line of `new`."""
        if lines := new.decode(errors="replace").strip().splitlines():
            self._live.draw(lines[-1])

    def flush(self) -> None:
        """Do nothing: a line is drawn at once."""


def plan(study: SurvivalConfig) -> StudyPlan:
    """Return every run, seed after seed, and the ways that the MPI at hand does not allow.

    Raises: UserError when there is no MPI, or nothing to run.
    """
    left_out = dict[str, str]()
    for way in study.ways:
        try:
            _planned(study, way, 0).check()
        except UserError as error:
            left_out[way] = str(error).splitlines()[0]
    possible = [way for way in study.ways if way not in left_out]
    if not possible:
        raise UserError(f"there is nothing to run: {next(iter(left_out.values()))}")
    runs = [_planned(study, way, seed) for seed in study.all_seeds for way in possible]
    return StudyPlan(runs=tuple(runs), left_out=left_out)


def _planned(study: SurvivalConfig, way: WayName, seed: int) -> SurvivalRun:
    return SurvivalRun(
        name=f"{way}-s{seed}",
        way=way,
        ranks=study.ranks,
        faults=() if way == "undisturbed" else (f"kill:{study.mean_s:g}:{seed}",),
        config=DisturbedTraining(
            width=study.width,
            batch_size=study.batch_size,
            micro_batches=study.micro_batches,
            steps=study.num_steps,
            train_samples=study.train_samples,
            lr=study.lr,
            seed=seed,
            dataset=study.dataset,
            data_root=study.data_root,
            timeout_s=study.timeout_s,
        ),
    )
