"""Make the runs of a study, each its own job: a crash costs one run, an interruption none."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.console import Console

from phalanx.errors import RunFailedError, UserError
from phalanx.records.files import read_events, read_run, read_study, write_study
from phalanx.records.schema import Study, Summary
from phalanx.study.planned import PlannedRun


def open_study(
    folder: Path,
    planned: Sequence[PlannedRun],
    *,
    kind: str,
    command: str,
    left_out: Mapping[str, str] | None = None,
) -> None:
    """Write the plan, or find the same one there.

    left_out: what is no run of the study although it was asked for, and why.
    Raises: UserError when the folder holds another study.
    """
    names = [run.name for run in planned]
    if (folder / "study.json").exists():
        found = read_study(folder)
        if found.runs != names:
            raise UserError(
                f"{folder} holds another study ({found.command}): name another --study-dir"
            )
        return
    study = Study(
        study=folder.name,
        kind=kind,
        command=command,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        runs=names,
        left_out=dict(left_out or {}),
    )
    try:
        write_study(folder, study)
    except OSError as error:
        raise UserError(f"the study cannot be written to {folder}: {error.strerror}") from error


def execute(folder: Path, planned: Sequence[PlannedRun], console: Console) -> int:
    """Make every run that is not there yet; returns how many failed.

    Runs that failed or were interrupted in an earlier attempt are made again.
    """
    todo = [run for run in planned if not is_done(folder / run.name)]
    if len(todo) < len(planned):
        console.print(f"{len(planned) - len(todo)} of {len(planned)} runs are there already")
    failed = 0
    began = time.monotonic()
    for number, run in enumerate(todo, 1):
        label = f"[{number:{len(str(len(todo)))}}/{len(todo)}] {run.name:{_width(todo)}}"
        try:
            set_aside(folder / run.name)
            run.make(folder / run.name, study=folder.name, console=console, label=label)
            text = _result(folder / run.name)
        except (RunFailedError, UserError) as error:
            failed += 1
            text = f"failed: {str(error).splitlines()[0]}"
        left_s = (time.monotonic() - began) / number * (len(todo) - number)
        left = f"  about {timedelta(seconds=round(left_s))} left" if number < len(todo) else ""
        console.print(f"{label}  {text}{left}", markup=False)
    return failed


def is_done(folder: Path) -> bool:
    try:
        return read_run(folder).outcome.status == "completed"
    except ValueError:
        return False


def set_aside(target: Path) -> None:
    """Keep an attempt that did not end well out of the way of the next."""
    if not target.exists():
        return
    attempts = target.parent / "attempts"
    attempts.mkdir(exist_ok=True)
    number = sum(1 for _ in attempts.glob(f"{target.name}.*")) + 1
    target.rename(attempts / f"{target.name}.{number}")


def _width(runs: Sequence[PlannedRun]) -> int:
    return max(len(run.name) for run in runs)


def _result(folder: Path) -> str:
    summaries = [e for e in read_events(folder / "rank-0.jsonl") if isinstance(e, Summary)]
    epoch_s = sorted(summary.epoch_s for summary in summaries)[len(summaries) // 2]
    last = summaries[-1]
    return (
        f"epoch {epoch_s:7.2f} s  {last.images_per_s:8,.0f} images/s"
        f"  accuracy {last.validation_accuracy:7.2%}"
    )
