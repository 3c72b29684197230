"""A run as its own job: start the ranks, watch their records, say how it ended.

This process imports neither torch nor MPI, so it answers at once and outlives whatever happens
to the ranks.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from phalanx.errors import UserError
from phalanx.launch.command import Command, mpi_job
from phalanx.launch.cores import usable_cores
from phalanx.launch.installation import MpiInstallation, find_mpi
from phalanx.launch.job import Job
from phalanx.launch.local import local_commands
from phalanx.records.launcher_log import LAUNCHER_LOG
from phalanx.records.running import end_run, judge, raise_failure
from phalanx.records.schema import Outcome
from phalanx.train.config import TrainConfig
from phalanx.train.progress import Progress
from phalanx.train.run import begin_run

POLL_INTERVAL_S = 0.1
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
    """Train by ranks of their own, with records in `folder`; `config` is complete.

    label: what stands before the live line; with one, finished epochs are not printed.
    Returns when every rank has written that it came to its end.
    Raises: UserError for what the user can mend, RunFailedError when a rank failed or hung,
            KeyboardInterrupt after all ranks were ended; the outcome is in `run.json` each time.
    """
    mpi, obstacle = _mpi_for(config)
    begin_run(folder, config, study=study, command=command, mpi=str(mpi) if mpi else None)
    try:
        if obstacle:
            raise obstacle
        with tempfile.TemporaryDirectory(prefix="phalanx-") as meeting:
            words = [*program, str(folder)]
            commands = rank_commands(config, words, mpi, Path(meeting) / "rendezvous")
            with Job.start(commands, folder / LAUNCHER_LOG) as job:
                exit_code = _watch(job, config, Progress(console, folder, config, label))
        assert config.ranks is not None, "complete() comes first"
        outcome = judge(folder, config.ranks, exit_code, timeout_s=config.timeout_s)
    except KeyboardInterrupt:
        end_run(folder, Outcome(status="interrupted"))
        raise
    except UserError as error:
        end_run(folder, Outcome(status="failed", error=str(error)))
        raise
    end_run(folder, outcome)
    raise_failure(folder, outcome)


def _mpi_for(config: TrainConfig) -> tuple[MpiInstallation | None, UserError | None]:
    """The MPI that the run needs, or why there is none."""
    if not config.uses_mpi:
        return None, None
    try:
        return find_mpi(os.environ), None
    except UserError as error:
        return None, error


def rank_commands(
    config: TrainConfig, words: Sequence[str], mpi: MpiInstallation | None, rendezvous: Path
) -> list[Command]:
    """The processes to start: one launcher for MPI, else each rank by itself."""
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


def _watch(job: Job, config: TrainConfig, progress: Progress) -> int | None:
    """Show progress until the job ends; None when nothing has happened for the run's timeout."""
    heard_at = time.monotonic()
    with progress:
        while (exit_code := job.poll()) is None:
            if progress.update():
                heard_at = time.monotonic()
            elif time.monotonic() - heard_at > 2 * config.timeout_s:
                return None
            time.sleep(POLL_INTERVAL_S)
        progress.update()
    return exit_code
