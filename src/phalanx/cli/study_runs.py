"""Make and report the runs of a study; this needs what draws reports (`phalanx[study]`)."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from phalanx.cli.as_json import print_study
from phalanx.cli.console import interruption_noted
from phalanx.cli.preflight import preflight_nodes
from phalanx.errors import RunFailedError
from phalanx.jobs.record import this_command
from phalanx.report.page import write_report
from phalanx.study.execute import execute, is_done, open_study
from phalanx.study.planned import PlannedRun, named_hosts

AnyRun = TypeVar("AnyRun", bound=PlannedRun)


def run_study(
    folder: Path,
    planned: Sequence[AnyRun],
    console: Console,
    print_summary: Callable[[Path, Console], None],
    *,
    kind: str,
    reasons: Sequence[str] = (),
    where: str = "",
    data: Sequence[str] = (),
    left_out: Mapping[str, str] | None = None,
    make_runs: Callable[[Path, Sequence[AnyRun], Console], int] = execute,
    preflight: bool = True,
    json_: bool = False,
) -> None:
    """Open a study or go on with it, make its runs, print its summary and draw its page.

    reasons: lines to print first. where: what is added to the line that names the folder.
    make_runs: returns how many runs failed. preflight: examine the nodes first, once.
    The others: as `open_study` takes them.
    Raises: UserError as `open_study`; RunFailedError when any run failed.
    """
    todo = [run for run in planned if not is_done(folder / run.name, run.record)]
    if preflight and todo:
        preflight_nodes(max(run.mpi_ranks for run in todo), console, folders=[folder])
    command = shlex.join(this_command())
    data = [*data, *named_hosts()]
    open_study(folder, planned, kind=kind, command=command, data=data, left_out=left_out)
    for line in (*reasons, f"{len(planned)} runs in {folder}{where}"):
        console.print(line, markup=False)
    with interruption_noted(console, "the same command goes on from here"):
        failed = make_runs(folder, planned, console)
    print_summary(folder, console)
    report = write_report(folder)
    console.print(f"report: {report}", markup=False)
    print_study(folder, report, json_)
    if failed:
        raise RunFailedError(f"{failed} of {len(planned)} runs failed; the report says why")
