"""A run as its own job: read the data once, start the ranks, watch their records, say how it
ended. This process imports no MPI, and PyTorch only where the embedded digits must be made."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

from rich.console import Console

from phalanx.errors import UserError
from phalanx.launch.allocation import check_ranks
from phalanx.launch.command import Command, local_commands, mpi_job
from phalanx.launch.cores import usable_cores
from phalanx.launch.detect import detect
from phalanx.launch.installation import MpiInstallation, find_mpi
from phalanx.launch.job import Job
from phalanx.launch.temporary import job_folder
from phalanx.launch.watch import watch
from phalanx.records.closing import closed_on_error, end_run
from phalanx.records.environment import describe_environment
from phalanx.records.launcher_log import LAUNCHER_LOG
from phalanx.records.outcome import JobExit, determine_outcome, raise_failure
from phalanx.records.running import begin_run
from phalanx.records.schema import Setting
from phalanx.scratch.config import ScratchConfig, choose_data
from phalanx.scratch.progress import ScratchProgress

RUNS = Path("runs") / "scratch"
RANK_PROGRAM = (sys.executable, "-m", "phalanx.scratch")


def run_scratch(
    config: ScratchConfig,
    folder: Path,
    *,
    study: str,
    command: Sequence[str],
    console: Console,
    label: str | None = None,
    program: Sequence[str] = RANK_PROGRAM,
) -> None:
    """Train by ranks of their own, with records in `folder`; `config` is complete.

    label: what stands before the live line; with one, the table of epochs is not printed.
    Returns when every rank has written that it came to its end.
    Raises: UserError for what the user can mend, RunFailedError when a rank failed or hung,
            KeyboardInterrupt after all ranks were ended; the outcome is in `run.json` each time.
    """
    assert config.ranks is not None, "complete() comes first"
    check_ranks(config.ranks, os.environ)
    mpi = None if config.scheme == "alone" else find_mpi(os.environ)
    begin_run(
        folder,
        study=study,
        command=command,
        config=config.as_record(),
        setting=setting_of(config),
        environment=describe_environment(str(mpi) if mpi else None, cores=usable_cores()),
    )
    with closed_on_error(partial(end_run, folder)):
        with job_folder() as images:
            write_samples(config, images)
            ranks = rank_command(config, [*program, str(folder), str(images)], mpi)
            progress = ScratchProgress(console, folder, config, label)
            silent_s, has_launcher = 2 * config.timeout_s, mpi is not None
            with Job.start([ranks], folder / LAUNCHER_LOG) as job, progress:
                ending = watch(job, progress.update, silent_s=silent_s, has_launcher=has_launcher)
        outcome = determine_outcome(folder, config.ranks, JobExit(*ending))
    end_run(folder, outcome)
    raise_failure(folder, outcome)


def refuse_launcher(environ: Mapping[str, str]) -> None:
    """Raises: UserError when a launcher has started this process: each of its ranks would start a
    run of its own."""
    launched = detect(environ)
    if launched is not None:
        raise UserError(
            f"phalanx scratch starts its ranks itself, and {launched.launcher} has started "
            f"{launched.world_size}: leave the launcher out, and say --ranks {launched.world_size}"
        )


def new_folder(config: ScratchConfig) -> Path:
    """A name for a run that was given none; not made yet."""
    moment = datetime.now().strftime("%Y%m%d-%H%M%S")
    ranks = "" if config.scheme == "alone" else f"-{config.ranks}"
    return RUNS / f"{moment}-{config.scheme}{ranks}"


def title(config: ScratchConfig) -> str:
    """Return the first line of the log: what is trained."""
    assert config.ranks is not None, "complete() comes first"
    network = " → ".join(map(str, config.sizes))
    servers = f", {config.servers} of them servers" if config.scheme == "server" else ""
    return (
        f"{network} ({config.activation}) on {config.dataset}: {config.scheme}, "
        f"{config.ranks} rank{'s' * (config.ranks > 1)}{servers}, batch {config.batch_size}, "
        f"learning rate {config.lr:g}, momentum {config.momentum:g}"
    )


def setting_of(config: ScratchConfig) -> Setting:
    """Return the setting for the record; `config` is complete."""
    assert config.ranks is not None, "complete() comes first"
    options: dict[str, str | int | float | bool] = {
        "hidden": " ".join(map(str, config.hidden)),
        "activation": config.activation,
        "momentum": config.momentum,
    }
    if config.servers is not None:
        options["servers"] = config.servers
    return Setting(
        model="network",
        dataset=config.dataset,
        strategy=config.scheme,
        ranks=config.ranks,
        threads=config.threads,
        global_batch_size=config.batch_size,
        epochs=config.epochs,
        learning_rate=config.lr,
        learning_rate_rule="none",
        optimizer="sgd",
        seed=config.seed,
        dtype=config.dtype,
        options=options,
    )


def write_samples(config: ScratchConfig, folder: Path) -> None:
    """Read the data and write what the run uses of it where all ranks can map it."""
    from phalanx.data.datasets.images import read_images  # imports NumPy: not for a usage error
    from phalanx.scratch.images import write_images

    write_images(
        folder,
        read_images(choose_data(config)),
        train_samples=config.train_samples,
        validation_samples=config.validation_samples,
    )


def rank_command(
    config: ScratchConfig, words: Sequence[str], mpi: MpiInstallation | None
) -> Command:
    """The launcher that starts the ranks, or the one process itself."""
    assert config.ranks is not None, "complete() comes first"
    if mpi is None:
        (started,) = local_commands(1, words, environ=os.environ)
    else:
        started = mpi_job(mpi, config.ranks, words, cores=usable_cores(), environ=os.environ)
    # Each pool reads its variable once, when NumPy is imported.
    pools = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    threads = dict.fromkeys(pools, str(config.threads))
    return Command(
        words=started.words,
        environment={**started.environment, **threads},
        death_signal=started.death_signal,
    )
