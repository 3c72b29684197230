"""A run of `phalanx train` as a job of its own ranks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from phalanx.errors import UserError
from phalanx.jobs.live_line import LiveLine
from phalanx.jobs.record import run_recorded
from phalanx.jobs.runtime import RankJob, run_ranks
from phalanx.launch.installation import MpiInstallation, find_mpi
from phalanx.launch.survival import SPARES
from phalanx.launch.temporary import job_folder
from phalanx.records.schema import Outcome, Run
from phalanx.train.config import TrainConfig
from phalanx.train.progress import TrainingProgress
from phalanx.train.run import begin_run, has_launcher

RANK_PROGRAM = (sys.executable, "-m", "phalanx.train")


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
    assert config.ranks is not None, "complete() comes first"
    ranks, threads = config.ranks + config.spares, config.threads
    mpi, obstacle = _mpi_for(config)
    begin_run(folder, config, study=study, command=command, mpi=mpi)

    def train() -> Outcome:
        if obstacle:
            raise obstacle
        with job_folder() as meeting, LiveLine(console, label) as line:
            progress = TrainingProgress(config)
            job = RankJob(
                folder=folder,
                ranks=ranks,
                program=[*program, str(folder)],
                mpi=mpi,
                threads=threads,
                silent_s=2 * config.timeout_s,
                survive=config.survive,
                patience_s=config.patience,
                check=check,
                grace_s=config.grace_s if config.checkpoint_dir else None,
                environment=_environment(config, None if mpi else meeting),
            )
            return run_ranks(job, lambda events: line.show(progress, events))

    run_recorded(folder, Run, train)


def _environment(config: TrainConfig, meeting: Path | None) -> dict[str, str]:
    """Return variables for the ranks. meeting: folder of those without MPI, to find each other."""
    if meeting is not None:
        return {"PHALANX_RENDEZVOUS": str(meeting / "rendezvous")}
    return {SPARES: str(config.spares)} if config.spares else {}


def _mpi_for(config: TrainConfig) -> tuple[MpiInstallation | None, UserError | None]:
    """Return the MPI that the run needs, or why there is none."""
    if not has_launcher(config):
        return None, None
    try:
        return find_mpi(os.environ), None
    except UserError as error:
        return None, error
