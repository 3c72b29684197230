"""A run of `phalanx scratch` as a job of its own ranks. Its data is read once.

This process imports no MPI, and PyTorch only where the embedded digits must be made.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from phalanx.jobs.live_line import LiveLine
from phalanx.jobs.record import begin_record, default_folder, opening_fields, run_recorded
from phalanx.jobs.runtime import RankJob, run_ranks
from phalanx.launch.allocation import allocation, check_ranks
from phalanx.launch.installation import find_mpi
from phalanx.launch.temporary import job_folder
from phalanx.records.schema import Outcome, Run, Setting
from phalanx.scratch.config import ScratchConfig, choose_data
from phalanx.scratch.progress import ScratchProgress

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
    ranks = config.ranks
    check_ranks(ranks, os.environ)
    mpi = None if config.scheme == "alone" else find_mpi(os.environ)
    run = Run(
        study=study,
        run=folder.name,
        config=config.as_record(),
        setting=setting_of(config),
        **opening_fields(command, mpi),
    )
    begin_record(folder, run)

    def train() -> Outcome:
        with job_folder() as images, LiveLine(console, label) as line:
            write_samples(config, images)
            progress = ScratchProgress(config)
            job = RankJob(
                folder=folder,
                ranks=ranks,
                program=[*program, str(folder), str(images)],
                mpi=mpi,
                threads=None if allocation(os.environ).has_others else config.threads,
                silent_s=2 * config.timeout_s,
            )
            return run_ranks(job, lambda events: line.show(progress, events))

    run_recorded(folder, Run, train)


def new_folder(config: ScratchConfig) -> Path:
    """A name for a run that was given none; not made yet."""
    ranks = "" if config.scheme == "alone" else f"-{config.ranks}"
    return default_folder("scratch", f"{config.scheme}{ranks}")


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
