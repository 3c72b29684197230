"""Execute the runs of a study, each as a separate job: a crash costs one run, an interruption none.

Before and after each run the processor time is probed that other processes take.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from phalanx.errors import RunFailedError, UserError
from phalanx.jobs.core_probe import probe
from phalanx.jobs.cores import usable_cores
from phalanx.records.configuration import Configuration, deciding_options, differences, shared
from phalanx.records.divergence import loss_text
from phalanx.records.files import (
    read_record,
    read_run,
    read_study,
    write_record,
)
from phalanx.records.schema import JobRecord, Outcome, Probe, Run, Study
from phalanx.report.folder import read_folder
from phalanx.study.run import StudyRun

MOST_TOLD = 6
"""Options that differ, in one message."""


@dataclass(frozen=True, kw_only=True)
class PreparedStudy:
    """A study before its first run."""

    kind: str
    folder: Path
    runs: Sequence[StudyRun]
    reasons: Sequence[str] = ()
    """Lines to print first."""
    where: str = ""
    """Words behind the line that names the folder."""
    data: Sequence[str] = ()
    """Data sets that were found for it."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Runs of the study that are asked for and impossible, and why."""
    make_runs: Callable[[Path, Sequence[Any], Console], int] | None = None
    """Maker of the runs, which returns how many failed; `execute` where None."""
    hint: str = ""
    """Last line of the summary."""


def open_study(study: PreparedStudy, command: str) -> None:
    """Write the study with the configuration of each run, or find the same one there.

    Raises: UserError when the folder holds another study, or one of other options, and when none
    of the runs can be made.
    """
    folder, data = study.folder, list(study.data)
    wanted = {run.name: deciding_options({**run.options, "data found": data}) for run in study.runs}
    if (folder / "study.json").exists():
        _check_same(folder, _read(folder), wanted, command)
        return
    _check_possible(study.runs)
    common = shared(wanted)
    record = Study(
        study=folder.name,
        kind=study.kind,
        command=command,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        runs=list(wanted),
        left_out=dict(study.left_out),
        common=common,
        configurations={
            name: {option: value for option, value in config.items() if option not in common}
            for name, config in wanted.items()
        },
    )
    try:
        write_record(folder, record)
    except OSError as error:
        raise UserError(f"the study cannot be written to {folder}: {error.strerror}") from error


def _check_possible(runs: Sequence[StudyRun]) -> None:
    """Raises: UserError with the first reason, where every run refuses its options. A run that can
    be made is enough: the others are then shown with their errors."""
    first = None
    for run in runs:
        try:
            run.check()
        except UserError as error:
            first = first or error
        else:
            return
    if first is not None:
        raise UserError(f"none of the {len(runs)} runs can start: {first}")


def _read(folder: Path) -> Study:
    try:
        return read_study(folder)
    except ValueError as error:
        raise UserError(f"{error}: use another --study-dir") from error


def _check_same(
    folder: Path, found: Study, wanted: Mapping[str, Configuration], command: str
) -> None:
    """Raises: UserError naming what differs: runs of both would stand in one table."""
    if found.runs != list(wanted):
        raise UserError(f"{folder} holds another study ({found.command}): use another --study-dir")
    if not found.configurations:
        raise UserError(
            f"{folder} was started by an older Phalanx, which did not record the options of its "
            "runs: use another --study-dir"
        )
    differ = [
        difference
        for name, config in wanted.items()
        for difference in differences({**found.common, **found.configurations[name]}, config)
    ]
    if differ:
        told = list(dict.fromkeys(differ))
        more = f" and {len(told) - MOST_TOLD} more" if len(told) > MOST_TOLD else ""
        goes_on = f", or resume with `{found.command}`"
        if found.command == command:
            goes_on = ": the same command had other defaults in the Phalanx that started it"
        raise UserError(
            f"{folder} was started with other options: {'; '.join(told[:MOST_TOLD])}{more}.\nUse "
            f"another --study-dir for `{command}`{goes_on}"
        )


def is_done(
    folder: Path, kind: type[JobRecord], also: Callable[[Outcome], bool] = lambda _: False
) -> bool:
    """also: whether another outcome than completion is a result."""
    try:
        outcome = read_record(folder, kind).outcome
    except ValueError:
        return False
    return outcome.status == "completed" or also(outcome)


def execute(
    folder: Path,
    runs: Sequence[StudyRun],
    console: Console,
    is_there: Callable[[Path, type[JobRecord]], bool] = is_done,
) -> int:
    """Make every run that is not there yet; returns how many failed.

    Runs that failed or were interrupted in an earlier attempt are made again.
    is_there: whether the run in a folder is not to be made again.
    """
    todo = [run for run in runs if not is_there(folder / run.name, run.record)]
    if len(todo) < len(runs):
        console.print(f"{len(runs) - len(todo)} of {len(runs)} runs are already done")
    failed, width = 0, max((len(run.name) for run in todo), default=0)
    began = time.monotonic()
    before = probe(usable_cores())
    for number, run in enumerate(todo, 1):
        label = f"[{number:{len(str(len(todo)))}}/{len(todo)}] {run.name:{width}}"
        try:
            set_aside(folder / run.name)
            run.make(folder / run.name, study=folder.name, console=console, label=label)
            after = probe(usable_cores())
            text = _record_result(folder / run.name, run.record, [before, after])
            before = after
        except (RunFailedError, UserError, OSError) as error:
            failed += not is_there(folder / run.name, run.record)
            before = probe(usable_cores())
            text = f"failed: {str(error).splitlines()[0]}"
        left_s = (time.monotonic() - began) / number * (len(todo) - number)
        left = f"  about {timedelta(seconds=round(left_s))} left" if number < len(todo) else ""
        console.print(f"{label}  {text}{left}", markup=False)
    return failed


def set_aside(target: Path) -> None:
    """Keep an attempt that did not end well out of the way of the next."""
    if not target.exists():
        return
    attempts = target.parent / "attempts"
    attempts.mkdir(exist_ok=True)
    number = sum(1 for _ in attempts.glob(f"{target.name}.*")) + 1
    target.rename(attempts / f"{target.name}.{number}")


def _record_result(folder: Path, kind: type[JobRecord], probes: list[Probe]) -> str:
    """Add the probes to the record of a training; return its result in words."""
    if kind is not Run:
        return "completed"
    write_record(folder, msgspec.structs.replace(read_run(folder), probes=probes))
    (measure,) = read_folder(folder).runs
    if not measure.trained or measure.epoch_s is None:
        return "completed"
    last, rate = measure.trained[-1], measure.images_per_s
    words = [f"epoch {measure.epoch_s:7.2f} s"]
    words += [] if rate is None else [f"{rate:8,.0f} samples/s"]
    if last.validation_accuracy is not None:
        words.append(f"accuracy {last.validation_accuracy:7.2%}")
    elif last.train_loss is not None:
        words.append(f"loss {loss_text(last.train_loss)}")
    return "  ".join(words)
