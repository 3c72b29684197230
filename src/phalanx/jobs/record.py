"""The record of a job (`run.json`, `bench.json`, `io.json`), from its begin to its outcome."""

from __future__ import annotations

import contextlib
import itertools
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypedDict

import msgspec

from phalanx.errors import RunFailedError, RunStoppedError, UserError, was_interrupted
from phalanx.jobs.cores import usable_cores
from phalanx.records.environment import describe_environment
from phalanx.records.files import (
    create,
    overwrite,
    read_record,
    record_file,
    write_record,
)
from phalanx.records.owner import this_process
from phalanx.records.schema import Environment, JobRecord, Outcome, Owner, Run, Status

RUNS = Path("runs")


def default_folder(kind: str, name: str) -> Path:
    """Return the folder of a job that was given none; it is not made yet.

    Names sort by time, and jobs that start in the same second have different ones.
    """
    return RUNS / kind / f"{datetime.now():%Y%m%d-%H%M%S-%f}-{name}"


def unused_folder(folder: Path) -> Path:
    """Return `folder`, or one beside it when it holds the records of a run: `folder-2`, and so on,
    for the run of a program that has several, or the next part of one that is resumed."""
    folders = (folder.with_name(f"{folder.name}-{number}") for number in itertools.count(2))
    candidates = itertools.chain([folder], folders)
    return next(each for each in candidates if not record_file(each, Run).exists())


RUN_DIR = "PHALANX_RUN_DIR"
"""Variable of the ranks of a program: folder of the records, where the program names none."""
COMMAND = "PHALANX_COMMAND"
"""Variable of the ranks of a program: the command that has started all of them."""


def this_command() -> list[str]:
    """Return the words of the command line of this process."""
    return [Path(sys.argv[0]).name, *sys.argv[1:]]


def job_command(environ: Mapping[str, str]) -> list[str]:
    """Return the words of the command that starts this rank's job again, as far as is known."""
    return shlex.split(environ.get(COMMAND, "")) or this_command()


class OpeningFields(TypedDict):
    """Fields that the records of all jobs begin with."""

    command: str
    environment: Environment
    outcome: Outcome
    started_at: str
    owner: Owner


def opening_fields(command: Sequence[str], mpi: object | None) -> OpeningFields:
    """Describe a job that begins now, in this process.

    mpi: name and version of the library in use; None: a job without MPI.
    Raises: UnicodeEncodeError for a word that is no text, of that word alone.
    """
    for word in command:
        word.encode()
    return OpeningFields(
        command=shlex.join(command),
        environment=describe_environment(str(mpi) if mpi else None, cores=usable_cores()),
        outcome=Outcome(status="running"),
        started_at=_now(),
        owner=this_process(),
    )


def begin_record(folder: Path, record: JobRecord) -> None:
    """Make the folder and write its record.

    Raises: UserError when the folder holds another job's records or cannot be written.
    """
    try:
        create(record_file(folder, type(record)), record)
    except FileExistsError:
        option, kind = ("--run-dir", "run") if isinstance(record, Run) else ("--output", "bench")
        message = f"{option} {folder} already holds the records of a {kind}: choose another folder"
        raise UserError(message) from None
    except OSError as error:
        raise UserError(f"records cannot be written to {folder}: {error.strerror}") from error


@contextlib.contextmanager
def closed_on_error(folder: Path, kind: type[JobRecord]) -> Iterator[None]:
    """Write how a job ended where the block is left by an error, and nobody has done so."""
    try:
        yield
    except BaseException as error:
        close_running(folder, kind, outcome_of(error))
        raise


def close_running(
    folder: Path, kind: type[JobRecord], outcome: Outcome, *, over: Sequence[Status] = ()
) -> None:
    """Write the outcome of a job of which nobody has, as far as the disk takes it.

    over: also over an outcome of that kind.
    """
    with contextlib.suppress(OSError, ValueError, RunFailedError):
        if read_record(folder, kind).outcome.status in ("running", *over):
            end_record(folder, kind, outcome)


def outcome_of(error: BaseException) -> Outcome:
    """Return the outcome of a job that ends by an error of the process that has started it."""
    if was_interrupted(error):
        return Outcome(status="interrupted")
    first_line = next(iter(str(error).splitlines()), type(error).__name__)
    is_asked = isinstance(error, RunStoppedError)
    return Outcome(status="interrupted" if is_asked else "failed", error=first_line)


def end_record(folder: Path, kind: type[JobRecord], outcome: Outcome) -> None:
    """Write the outcome. Raises: RunFailedError, which names it, when that is not possible."""
    path = record_file(folder, kind)
    try:
        record = read_record(folder, kind)
        ended = msgspec.structs.replace(record, outcome=outcome, ended_at=_now())
        try:
            write_record(folder, ended)
        except OSError:  # no space for a new file: write over the old one
            with contextlib.suppress(OSError):
                return overwrite(path, ended)
            raise
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        text = outcome.status + (f": {outcome.error}" if outcome.error else "")
        message = f"records cannot be written: {path}: {why}; the run has {text}"
        raise RunFailedError(message) from error


def _now() -> str:
    """Return the time in ISO 8601, UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
