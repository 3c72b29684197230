"""The job of a benchmark: start the ranks, follow their records, record the outcome.

This process imports neither torch nor MPI, so it starts at once and survives crashes of the ranks.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

from rich.console import Console

from phalanx.bench.config import CollectivesConfig
from phalanx.bench.crowd import crowd
from phalanx.bench.progress import BenchProgress
from phalanx.errors import UserError
from phalanx.launch.allocation import check_ranks, max_local_ranks, slots_per_node
from phalanx.launch.command import Command, mpi_job
from phalanx.launch.cores import usable_cores
from phalanx.launch.installation import MpiInstallation, find_mpi
from phalanx.launch.job import Job
from phalanx.launch.watch import watch
from phalanx.records.closing import closed_on_error, end_bench, now
from phalanx.records.collectives import Bench, BenchSetting, MeasuredEvent
from phalanx.records.files import create, read_bench_events
from phalanx.records.launcher_log import LAUNCHER_LOG
from phalanx.records.outcome import JobExit, determine_outcome, raise_failure
from phalanx.records.owner import this_process
from phalanx.records.schema import Outcome
from phalanx.train.environment import describe_environment

RUNS = Path("runs") / "bench"
CROWD_LOG = "crowd.log"
RANK_PROGRAM = (sys.executable, "-m", "phalanx.bench")


def new_folder(config: CollectivesConfig) -> Path:
    """Return the default folder of a benchmark, which is not created."""
    moment = datetime.now().strftime("%Y%m%d-%H%M%S")
    return RUNS / f"{moment}-collectives-{config.ranks}"


def run_bench(
    config: CollectivesConfig,
    folder: Path,
    *,
    command: Sequence[str],
    console: Console,
    program: Sequence[str] = RANK_PROGRAM,
) -> None:
    """Run the benchmark, with records in `folder`.

    Raises: UserError for bad options, RunFailedError when a rank failed or hung, KeyboardInterrupt
            after all ranks were ended; the outcome is always in `bench.json`.
    """
    check_ranks(config.ranks, os.environ)
    mpi = find_mpi(os.environ)
    _begin(folder, config, command, mpi)
    console.print(f"{config.title}\nrecords in {folder}", markup=False)
    with closed_on_error(partial(end_bench, folder)):
        ranks = rank_command(config, mpi, [*program, str(folder)])
        progress = BenchProgress(console, folder)
        silent_s = 2 * config.timeout_s + config.seconds
        with (
            crowd(config.crowd, folder / CROWD_LOG),
            Job.start([ranks], folder / LAUNCHER_LOG) as job,
            progress,
        ):
            ending = watch(job, progress.update, silent_s=silent_s, has_launcher=True)
        outcome = determine_outcome(
            folder, config.ranks, JobExit(*ending), events=read_bench_events, last=MeasuredEvent
        )
    end_bench(folder, outcome)
    raise_failure(folder, outcome)


def rank_command(config: CollectivesConfig, mpi: MpiInstallation, words: Sequence[str]) -> Command:
    """Return the launcher's command line and the variables of the ranks."""
    command = mpi_job(mpi, config.ranks, words, cores=usable_cores(), environ=os.environ)
    local_ranks = max_local_ranks(config.ranks, slots_per_node(os.environ))
    threads = str(max(1, usable_cores() // local_ranks))
    added = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    if "GLOO_SOCKET_IFNAME" not in os.environ:
        # Gloo would resolve the host name, which may fail in a container.
        added["GLOO_SOCKET_IFNAME"] = "lo"
    return Command(
        words=command.words,
        environment={**command.environment, **added},
        death_signal=command.death_signal,
    )


def _begin(
    folder: Path, config: CollectivesConfig, command: Sequence[str], mpi: MpiInstallation
) -> None:
    bench = Bench(
        bench=folder.name,
        command=shlex.join(command),
        config=config.as_record(),
        setting=BenchSetting(
            ranks=config.ranks,
            collectives=list(config.chosen_collectives),
            paths=list(config.chosen_paths),
            sizes_bytes=list(config.sizes_bytes),
            dtype=config.dtype,
            op=config.op,
            crowd=config.crowd,
        ),
        environment=describe_environment(str(mpi)),
        outcome=Outcome(status="running"),
        started_at=now(),
        owner=this_process(),
    )
    try:
        create(folder / "bench.json", bench)
    except FileExistsError:
        message = f"--output {folder} already holds the records of a bench: name another"
        raise UserError(message) from None
    except OSError as error:
        raise UserError(f"records cannot be written to {folder}: {error.strerror}") from error
