"""The options of `phalanx launch` that write a job file for a batch system."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from phalanx.errors import RunFailedError, UserError
from phalanx.jobs.batch import (
    CLOUD,
    DEFAULT_NOTICE_S,
    SUBMIT,
    SUFFIX,
    BatchJob,
    System,
    job_file,
    parse_time,
)
from phalanx.records.files import create_file

BATCH = Group("Batch systems", sort_key=8)


@dataclass(frozen=True, kw_only=True)
class SubmitOptions:
    """Options of a job file."""

    submit: System | None = None
    """Write a job file for this batch system in place of running the program: `slurm`, `pbs`,
    `k8s` (MPIJob of the MPI Operator) or `trainjob` (Kubeflow Trainer)."""

    go: Annotated[bool, Parameter(negative="")] = False
    """Submit the job file at once."""

    job_file: Path | None = None
    """Path of the job file; default: PROGRAM.sbatch, .pbs or .yaml here."""

    nodes: int = 1
    """Number of nodes, over which the ranks are spread evenly."""

    time: str = "1:00:00"
    """Time limit: minutes, H:MM:SS or D-HH:MM:SS."""

    notice: int = DEFAULT_NOTICE_S
    """Seconds before the limit at which ranks save a checkpoint and stop, to be queued again."""

    directive: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """Further line for Slurm or PBS, without its prefix: `--directive=--partition=long`."""

    image: str | None = None
    """Container image, for Kubernetes."""

    runtime: str = BatchJob.runtime
    """ClusterTrainingRuntime of a TrainJob; it must have an MPI policy."""

    workdir: Path | None = None
    """Working folder. Default: the current folder; in Kubernetes that of the image."""


Submit = Annotated[SubmitOptions, Parameter(name="*", group=BATCH)]
LOCALLY = SubmitOptions()


def check_used(options: SubmitOptions) -> None:
    """Raises: UserError for options of a job file where none is written."""
    for name, value in vars(options).items():
        if value != getattr(LOCALLY, name):
            option = f"--{name.replace('_', '-')}"
            raise UserError(f"{option} is for a job file: add --submit, or leave it out")


def write_job(
    options: SubmitOptions,
    words: Sequence[str],
    *,
    name: str,
    ranks: int,
    threads: int | None,
    flags: Sequence[str] = (),
    spares: int = 0,
) -> None:
    """Write the job file of the program `words`, say what to do with it, and submit it if asked.

    flags: of `phalanx launch`, beside those for ranks and threads. spares: ranks beside the others.
    Raises: UserError for options that do not fit, or a file that is there already; RunFailedError
            when the batch system refuses the job.
    """
    assert options.submit is not None, "the caller has looked"
    system, cloud = options.submit, options.submit in CLOUD
    path = options.job_file or Path(f"{name}{SUFFIX[system]}")
    job = BatchJob(
        name=name,
        command=_command(words, ranks, threads, flags, python=None if cloud else sys.executable),
        ranks=ranks + spares,
        nodes=options.nodes,
        threads=threads or 1,
        time_s=parse_time(options.time),
        notice_s=options.notice,
        folder=options.workdir or (None if cloud else Path.cwd()),
        file=path,
        directives=options.directive,
        image=options.image,
        runtime=options.runtime,
    )
    if cloud and options.directive:
        raise UserError("--directive is for Slurm and PBS: for Kubernetes edit the YAML file")
    if options.image is not None and not cloud:
        raise UserError(f"--image is for Kubernetes: leave it out for --submit {system}")
    submission = [*SUBMIT[system], str(path)]
    if options.go and shutil.which(submission[0]) is None:
        raise UserError(f"--go: {submission[0]} is not installed here: submit where it is")
    text = job_file(system, job)
    try:
        create_file(path, os.fsencode(text))
    except FileExistsError:
        raise UserError(f"{path} exists: use another --job-file, or remove it") from None
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from error
    said = f"{path}: {_count(ranks, 'rank')} on {_count(job.nodes, 'node')}"
    print(said if options.go else f"{said}; submit it: {shlex.join(submission)}", flush=True)
    if options.go:
        done = subprocess.run(submission, check=False)
        if done.returncode:
            raise RunFailedError(f"{submission[0]} refused {path} (exit code {done.returncode})")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _command(
    words: Sequence[str],
    ranks: int,
    threads: int | None,
    flags: Sequence[str],
    *,
    python: str | None,
) -> list[str]:
    """Return the command of the job. python: that runs Phalanx; None: `phalanx` of the image."""
    phalanx = ["phalanx"] if python is None else [python, "-m", "phalanx"]
    wide = [] if threads is None else ["--threads", str(threads)]
    if Path(words[0]).name == "phalanx":  # it starts its ranks itself
        if flags:
            raise UserError(f"{flags[0]} is for the phalanx command that is launched")
        return [*phalanx, *words[1:], "--ranks", str(ranks), *wide]
    return [*phalanx, "launch", "-n", str(ranks), *wide, *flags, *words]
