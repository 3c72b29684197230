"""A run as its own job: start the ranks, watch their records, report how it ended.

This process imports neither torch nor MPI, so it answers at once and outlives whatever happens
to the ranks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from phalanx.errors import UserError
from phalanx.launch.command import Command, local_commands, mpi_job
from phalanx.launch.cores import usable_cores
from phalanx.launch.installation import MpiInstallation, find_mpi
from phalanx.launch.job import Job
from phalanx.launch.temporary import job_folder
from phalanx.launch.watch import watch
from phalanx.records.closing import closed_on_error, end_run
from phalanx.records.launcher_log import LAUNCHER_LOG
from phalanx.records.outcome import JobExit, determine_outcome, raise_failure
from phalanx.train.config import TrainConfig
from phalanx.train.progress import Progress
from phalanx.train.run import begin_run

RANK_PROGRAM = (sys.executable, "-m", "phalanx.train")


def run_job(
    config: TrainConfig,
    folder: Path,
    *,
    study: str,
    command: Sequence[str],
    console: Console,
    label: str | None = None,
    program: Sequence[str] = RANK_PROGRAM,
) -> None:
    """Train with new ranks, with records in `folder`; `config` is complete.

    label: what stands before the live line; with one, finished epochs are not printed.
    Returns when every rank has written that it came to its end.
    Raises: UserError for what the user can mend, RunFailedError when a rank failed or hung,
            KeyboardInterrupt after all ranks were ended; the outcome is in `run.json` each time.
    """
    mpi, obstacle = _mpi_for(config)
    begin_run(folder, config, study=study, command=command, mpi=str(mpi) if mpi else None)
    with closed_on_error(partial(end_run, folder)):
        if obstacle:
            raise obstacle
        with job_folder() as meeting:
            words = [*program, str(folder)]
            commands = rank_commands(config, words, mpi, meeting / "rendezvous")
            progress = Progress(console, folder, config, label)
            silent_s, has_launcher = 2 * config.timeout_s, mpi is not None
            with Job.start(commands, folder / LAUNCHER_LOG) as job, progress:
                ending = watch(job, progress.update, silent_s=silent_s, has_launcher=has_launcher)
        assert config.ranks is not None, "complete() comes first"
        outcome = determine_outcome(folder, config.ranks, JobExit(*ending))
    end_run(folder, outcome)
    raise_failure(folder, outcome)


def _mpi_for(config: TrainConfig) -> tuple[MpiInstallation | None, UserError | None]:
    """Return the MPI that the run needs, or why there is none."""
    if not config.uses_mpi:
        return None, None
    try:
        return find_mpi(os.environ), None
    except UserError as error:
        return None, error


def rank_commands(
    config: TrainConfig, words: Sequence[str], mpi: MpiInstallation | None, rendezvous: Path
) -> list[Command]:
    """Return the processes to start: one launcher for MPI, else one process per rank."""
    assert config.ranks is not None, "complete() comes first"
    # Thread pools read these once, when they are first used.
    threads = {"OMP_NUM_THREADS": str(config.threads), "MKL_NUM_THREADS": str(config.threads)}
    if mpi:
        started = [mpi_job(mpi, config.ranks, words, cores=usable_cores(), environ=os.environ)]
    else:
        started = local_commands(config.ranks, words, environ=os.environ)
        threads["PHALANX_RENDEZVOUS"] = str(rendezvous)
    return [
        Command(
            words=command.words,
            environment={**command.environment, **threads},
            death_signal=command.death_signal,
        )
        for command in started
    ]
