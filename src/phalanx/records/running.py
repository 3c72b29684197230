"""A run's folder from beginning to end: `run.json` begun, the outcome judged and written."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from phalanx.errors import RunFailedError, UserError
from phalanx.records.files import rank_file, read_events, read_failure, read_run, write_run
from phalanx.records.last import last_file, read_last, who_was_where
from phalanx.records.launcher_log import LAUNCHER_LOG, read_log, why_silent
from phalanx.records.schema import Environment, Finished, Outcome, Run, Setting, Started


def begin_run(
    folder: Path,
    *,
    study: str,
    command: Sequence[str],
    config: dict[str, object],
    setting: Setting,
    environment: Environment,
) -> None:
    """Make the folder and write `run.json`, running.

    Raises: UserError when the folder holds another run's records or cannot be written.
    """
    if (folder / "run.json").exists():
        raise UserError(f"--run-dir {folder} already holds the records of a run: name another")
    run = Run(
        study=study,
        run=folder.name,
        command=shlex.join(command),
        config=config,
        setting=setting,
        environment=environment,
        outcome=Outcome(status="running"),
        started_at=_now(),
    )
    try:
        write_run(folder, run)
    except OSError as error:
        raise UserError(f"records cannot be written to {folder}: {error.strerror}") from error


def end_run(folder: Path, outcome: Outcome) -> None:
    write_run(folder, msgspec.structs.replace(read_run(folder), outcome=outcome, ended_at=_now()))


def judge(folder: Path, ranks: int, exit_code: int | None, *, timeout_s: float) -> Outcome:
    """How the run ended, by its own records; launchers have been seen to report success after
    losing ranks. What ranks did last is told where it differs. exit_code: None when the ranks fell
    silent and were ended."""
    outcome = _judged(folder, ranks, exit_code, timeout_s)
    failure = read_failure(folder)
    if outcome.status == "completed" or (failure is not None and failure.mendable):
        return outcome
    where = who_was_where(read_last(folder))
    if where is None:
        return outcome
    return msgspec.structs.replace(outcome, error=f"{outcome.error}\n  {where}")


def _judged(folder: Path, ranks: int, exit_code: int | None, timeout_s: float) -> Outcome:
    failure = read_failure(folder)
    if failure is not None:
        return Outcome(status="failed", error=failure.message, rank=failure.rank)
    unfinished = [rank for rank in range(ranks) if not _has_finished(folder, rank)]
    if not unfinished:
        return Outcome(status="completed")
    who = f"rank {', '.join(map(str, unfinished))}"
    if exit_code is None:
        return Outcome(status="failed", error=f"no progress for {timeout_s:g} s; unfinished: {who}")
    first = _first_to_end(folder, unfinished)
    if first is not None:
        rank, role = first
        return Outcome(
            status="failed",
            error=f"rank {rank}, a {role}, ended without a word (exit code {exit_code}): "
            "killed, perhaps for want of memory",
            rank=rank,
        )
    return Outcome(
        status="failed",
        error=f"ranks ended without a word (exit code {exit_code}); unfinished: {who}. "
        f"{why_silent(folder)}",
    )


def raise_failure(folder: Path, outcome: Outcome) -> None:
    """Nothing for a completed run.

    Raises: UserError for what the user can mend, RunFailedError for everything else.
    """
    if outcome.status == "completed":
        return
    failure = read_failure(folder)
    last = f"\n  what ranks did last: {last_file(folder, '*')}" if read_last(folder) else ""
    if failure is None:
        raise RunFailedError(
            f"{outcome.error}\n  the launcher's output: {folder / LAUNCHER_LOG}{last}"
        )
    if failure.mendable:
        raise UserError(failure.message)
    raise RunFailedError(
        f"rank {failure.rank} failed: {outcome.error}\n"
        f"  its traceback: {folder / 'error.json'}{last}"
    )


def _first_to_end(folder: Path, unfinished: Sequence[int]) -> tuple[int, str] | None:
    """The rank whose end made the launcher end all others, and its role; None where it does not
    tell. Launchers of all MPIs say the process: "PID 1234"."""
    named = [int(number) for number in re.findall(r"\bPID (\d+)", read_log(folder))]
    started = {rank: _started(folder, rank) for rank in unfinished}
    found = {event.process_id: (rank, event.role) for rank, event in started.items() if event}
    return next((found[number] for number in named if number in found), None)


def _started(folder: Path, rank: int) -> Started | None:
    path = rank_file(folder, rank)
    events = read_events(path) if path.exists() else iter(())
    return next((event for event in events if isinstance(event, Started)), None)


def _has_finished(folder: Path, rank: int) -> bool:
    path = rank_file(folder, rank)
    return path.exists() and any(isinstance(event, Finished) for event in read_events(path))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
