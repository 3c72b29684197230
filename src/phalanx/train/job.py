"""A run of `phalanx train` as a program on ranks of its own, which can be started again."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from phalanx.checkpoints.folder import check_unlocked, readable_folders
from phalanx.errors import UserError
from phalanx.jobs.binding import thread_variables
from phalanx.jobs.installation import MpiInstallation, find_mpi
from phalanx.jobs.launch_program import launch_program
from phalanx.jobs.live_line import LiveLine
from phalanx.jobs.record import closed_on_error
from phalanx.jobs.restarts import Attempt, Resumption
from phalanx.jobs.survival import SPARES
from phalanx.jobs.temporary import job_folder
from phalanx.records.schema import Run
from phalanx.train.config import TrainConfig
from phalanx.train.progress import TrainingProgress
from phalanx.train.run import begin_run, complete, has_launcher
from phalanx.train.training_options import AUTOMATIC

RANK_PROGRAM = (sys.executable, "-m", "phalanx.train")
ENDING_S = 10.0
"""Seconds for a rank that has given up, or was killed, to let go of its files."""


def run_job(
    config: TrainConfig,
    folder: Path,
    *,
    study: str,
    command: Sequence[str],
    console: Console,
    label: str | None = None,
    check: Callable[[], None] = lambda: None,
    program: Sequence[str] = RANK_PROGRAM,
) -> None:
    """Train with new ranks, with records in `folder`; `config` is complete.

    label: what stands before the live line; with one, finished epochs are not printed. check: is
    called again and again while the ranks run; what it raises ends them.
    Returns when every rank has written that it came to its end.
    Raises: UserError for what the user can mend, RunFailedError when a rank failed or hung,
            KeyboardInterrupt after all ranks were ended; the outcome is in `run.json` each time.
    """
    mpi, obstacle = _mpi_for(config)
    begin_run(folder, config, study=study, command=command, mpi=mpi)
    with closed_on_error(folder, Run):
        if obstacle is not None:
            raise obstacle
        with job_folder() as meeting, LiveLine(console, label) as line:
            progress = TrainingProgress(config)
            launch_program(
                folder,
                [*program, str(folder.absolute())],
                ranks=config.num_ranks + config.spares,
                threads=config.threads,
                mpi=mpi,
                show=lambda events: line.show(progress, events),
                environment=_environment(config, None if mpi else meeting),
                survive=config.survive,
                patience_s=config.patience,
                silent_s=2 * config.timeout_s,
                check=check,
                grace_s=config.grace_s if config.checkpoint_dir else None,
                keeps_record=True,
            )


def _environment(config: TrainConfig, meeting: Path | None) -> dict[str, str]:
    """Return variables for the ranks. meeting: folder of those without MPI, to find each other."""
    threads = thread_variables(config.threads, os.environ)
    if meeting is not None:
        return {**threads, "PHALANX_RENDEZVOUS": str(meeting / "rendezvous")}
    return {**threads, SPARES: str(config.spares)} if config.spares else threads


def _mpi_for(config: TrainConfig) -> tuple[MpiInstallation | None, UserError | None]:
    """Return the MPI that the run needs, or why there is none."""
    if not has_launcher(config):
        return None, None
    try:
        return find_mpi(os.environ), None
    except UserError as error:
        return None, error


@dataclass(kw_only=True)
class TrainingJob:
    """A training on ranks that `phalanx train` starts."""

    asked: TrainConfig
    """Configuration that the user gave."""
    config: TrainConfig
    """Complete."""
    command: Sequence[str]
    console: Console
    check: Callable[[], None] = lambda: None
    """Called again and again while they run; what it raises ends them."""

    def start(self, attempt: Attempt) -> None:
        """Train to the end; raises as `run_job`."""
        run_job(
            self.config,
            attempt.folder,
            study="train",
            command=self.command,
            console=self.console,
            check=self.check,
        )

    def prepare(self, attempt: Attempt, former: Attempt) -> Resumption:
        """Complete the configuration anew, on the nodes that are left.

        Raises: UserError where it does not fit them, or no checkpoint can be read.
        """
        saved, given = self.asked.checkpoint_dir, self.asked.resume
        if saved is not None:
            _wait_for(saved, self.asked.timeout_s + ENDING_S)
        resume = AUTOMATIC if saved is not None and readable_folders(saved) else given
        notices: list[str] = []
        self.config, _ = complete(
            replace(self.asked, ranks=attempt.ranks, resume=resume),
            None,
            notices,
            is_restart=True,
        )
        found = self.config.resume
        if found is None:
            why = "no checkpoint was written" if saved else "without --checkpoint-dir"
            notices = [f"from the beginning: {why}"]
        changed = ""
        if attempt.ranks != former.ranks:
            bits = "to the same bits" if self.config.bitwise else "sums differ by rounding"
            changed = f"{attempt.ranks} ranks in place of {former.ranks}, {bits}"
        return Resumption(None if found is None else str(found), "; ".join(notices), changed)


def _wait_for(folder: Path, within_s: float) -> None:
    """Wait until the ranks before have let go of their checkpoints: one that was cut off does when
    it gives up. Raises: UserError where they have not in time."""
    until = time.monotonic() + within_s
    while True:
        try:
            return check_unlocked(folder)
        except UserError:
            if time.monotonic() > until:
                raise
        time.sleep(0.05)
