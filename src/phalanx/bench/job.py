"""A measurement as its own job: start the ranks, watch their records, say how it ended.

This process imports neither torch nor MPI, so it answers at once and outlives whatever happens to
the ranks.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from rich.console import Console

from phalanx.bench.config import CollectivesConfig
from phalanx.bench.progress import Progress
from phalanx.errors import RunFailedError, UserError
from phalanx.launch.command import Command, mpi_job
from phalanx.launch.cores import usable_cores
from phalanx.launch.installation import MpiInstallation, find_mpi
from phalanx.launch.job import Job
from phalanx.records.collectives import Bench, BenchSetting, Measured
from phalanx.records.files import (
    rank_file,
    read_bench,
    read_bench_events,
    read_failure,
    write_bench,
)
from phalanx.records.launcher_log import LAUNCHER_LOG, why_silent
from phalanx.records.schema import Outcome
from phalanx.train.environment import describe_environment

RUNS = Path("runs") / "bench"
POLL_INTERVAL_S = 0.1
RANK_PROGRAM = (sys.executable, "-m", "phalanx.bench")


def new_folder(config: CollectivesConfig) -> Path:
    """A name for a measurement that was given none; not made yet."""
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
    """Measure, with records in `folder`.

    Raises: UserError for what the user can mend, RunFailedError when a rank failed or hung,
            KeyboardInterrupt after all ranks were ended; the outcome is in `bench.json` each time.
    """
    mpi = find_mpi(os.environ)
    _begin(folder, config, command, mpi)
    try:
        with Job.start(
            [rank_command(config, mpi, [*program, str(folder)])], folder / LAUNCHER_LOG
        ) as job:
            exit_code = _watch(job, config, Progress(console, folder))
    except KeyboardInterrupt:
        _end(folder, Outcome(status="interrupted"))
        raise
    outcome = judge(folder, config.ranks, exit_code)
    _end(folder, outcome)
    if outcome.status != "completed":
        raise _error(folder, outcome)


def rank_command(config: CollectivesConfig, mpi: MpiInstallation, words: Sequence[str]) -> Command:
    """The launcher that starts the ranks, with what each of them needs."""
    command = mpi_job(mpi, config.ranks, words, cores=usable_cores(), environ=os.environ)
    threads = str(max(1, usable_cores() // config.ranks))
    added = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    if "GLOO_SOCKET_IFNAME" not in os.environ:
        # Gloo would resolve the host's name, which need not lead anywhere in a container.
        added["GLOO_SOCKET_IFNAME"] = "lo"
    return Command(
        words=command.words,
        environment={**command.environment, **added},
        death_signal=command.death_signal,
    )


def judge(folder: Path, ranks: int, exit_code: int | None) -> Outcome:
    """How it ended, by its own records; launchers have been seen to report success after losing
    ranks. exit_code: None when the ranks fell silent and were ended."""
    failure = read_failure(folder)
    if failure is not None:
        return Outcome(status="failed", error=failure.message, rank=failure.rank)
    unfinished = [rank for rank in range(ranks) if not _has_finished(folder, rank)]
    if not unfinished:
        return Outcome(status="completed")
    who = f"unfinished: rank {', '.join(map(str, unfinished))}"
    if exit_code is None:
        return Outcome(status="failed", error=f"the ranks fell silent; {who}")
    return Outcome(
        status="failed",
        error=f"ranks ended without a word (exit code {exit_code}); {who}. {why_silent(folder)}",
    )


def _begin(
    folder: Path, config: CollectivesConfig, command: Sequence[str], mpi: MpiInstallation
) -> None:
    if (folder / "bench.json").exists():
        raise UserError(f"--output {folder} already holds the records of a bench: name another")
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
        ),
        environment=describe_environment(str(mpi)),
        outcome=Outcome(status="running"),
        started_at=_now(),
    )
    try:
        write_bench(folder, bench)
    except OSError as error:
        raise UserError(f"records cannot be written to {folder}: {error.strerror}") from error


def _end(folder: Path, outcome: Outcome) -> None:
    bench = read_bench(folder)
    write_bench(folder, msgspec.structs.replace(bench, outcome=outcome, ended_at=_now()))


def _watch(job: Job, config: CollectivesConfig, progress: Progress) -> int | None:
    """Show progress until the job ends; None when nothing has happened for too long."""
    heard_at = time.monotonic()
    with progress:
        while (exit_code := job.poll()) is None:
            if progress.update():
                heard_at = time.monotonic()
            elif time.monotonic() - heard_at > 2 * config.timeout_s + config.seconds:
                return None
            time.sleep(POLL_INTERVAL_S)
        progress.update()
    return exit_code


def _has_finished(folder: Path, rank: int) -> bool:
    path = rank_file(folder, rank)
    return path.exists() and any(isinstance(e, Measured) for e in read_bench_events(path))


def _error(folder: Path, outcome: Outcome) -> Exception:
    failure = read_failure(folder)
    if failure is None:
        return RunFailedError(f"{outcome.error}\n  the launcher's output: {folder / LAUNCHER_LOG}")
    if failure.mendable:
        return UserError(failure.message)
    return RunFailedError(
        f"rank {failure.rank} failed: {failure.message}\n  its traceback: {folder / 'error.json'}"
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
