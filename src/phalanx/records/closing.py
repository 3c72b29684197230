"""The outcome of a run, written into its record however the run ended."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from phalanx.errors import RunFailedError, was_interrupted
from phalanx.records.collectives import Bench
from phalanx.records.files import (
    overwrite,
    read_bench,
    read_io,
    read_run,
    write_bench,
    write_io,
    write_run,
)
from phalanx.records.io import IoBench
from phalanx.records.schema import Outcome, Run


def end_run(folder: Path, outcome: Outcome) -> None:
    """Close `run.json`. Raises: RunFailedError when it cannot be written."""
    with _writable(folder / "run.json", outcome):
        run = read_run(folder)
        ended = msgspec.structs.replace(run, outcome=outcome, ended_at=now())
        _write(lambda: write_run(folder, ended), folder / "run.json", ended)


def end_bench(folder: Path, outcome: Outcome) -> None:
    """Close `bench.json`. Raises: RunFailedError when it cannot be written."""
    with _writable(folder / "bench.json", outcome):
        bench = read_bench(folder)
        ended = msgspec.structs.replace(bench, outcome=outcome, ended_at=now())
        _write(lambda: write_bench(folder, ended), folder / "bench.json", ended)


def end_io(folder: Path, outcome: Outcome) -> None:
    """Close `io.json`. Raises: RunFailedError when it cannot be written."""
    with _writable(folder / "io.json", outcome):
        bench = read_io(folder)
        ended = msgspec.structs.replace(bench, outcome=outcome, ended_at=now())
        _write(lambda: write_io(folder, ended), folder / "io.json", ended)


@contextlib.contextmanager
def closed_on_error(end: Callable[[Outcome], None]) -> Iterator[None]:
    """Close the record with `end` when the block raises; the error goes on its way."""
    try:
        yield
    except BaseException as error:
        first_line = next(iter(str(error).splitlines()), type(error).__name__)
        outcome = Outcome(status="failed", error=first_line)
        if was_interrupted(error):
            outcome = Outcome(status="interrupted")
        with contextlib.suppress(RunFailedError):
            end(outcome)
        raise


def now() -> str:
    """ISO 8601, UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _write(write: Callable[[], None], path: Path, ended: Run | Bench | IoBench) -> None:
    """Write a new file; where no space is left for one, write over the old one."""
    try:
        write()
    except OSError as error:
        with contextlib.suppress(OSError):
            return overwrite(path, ended)
        raise error


@contextlib.contextmanager
def _writable(path: Path, outcome: Outcome) -> Iterator[None]:
    """Turn an error of the block, which writes `path`, into one that names the outcome as well."""
    try:
        yield
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        ended = outcome.status + (f": {outcome.error}" if outcome.error else "")
        message = f"records cannot be written: {path}: {why}; the run has {ended}"
        raise RunFailedError(message) from error
