"""Make and report the runs of a study; this needs what draws reports (`phalanx[study]`)."""

from __future__ import annotations

import shlex
from dataclasses import replace

from rich.console import Console

from phalanx.cli.as_json import print_study
from phalanx.cli.console import interruption_noted
from phalanx.cli.preflight import preflight_nodes
from phalanx.errors import RunFailedError
from phalanx.jobs.record import this_command
from phalanx.report.build import content_of
from phalanx.report.page import write_page
from phalanx.study.execute import PreparedStudy, execute, is_done, open_study
from phalanx.study.planned import named_hosts


def run_study(
    study: PreparedStudy, console: Console, *, preflight: bool = True, json_: bool = False
) -> None:
    """Open a study or go on with it, make its runs, print its summary and draw its page.

    preflight: examine the nodes first, once.
    Raises: UserError as `open_study`; RunFailedError when any run failed.
    """
    folder, runs = study.folder, study.runs
    todo = [run for run in runs if not is_done(folder / run.name, run.record)]
    if preflight and todo:
        preflight_nodes(max(run.mpi_ranks for run in todo), console, folders=[folder])
    found = replace(study, data=[*study.data, *named_hosts()])
    open_study(found, shlex.join(this_command()))
    left_out = (f"left out: {name}: {why}" for name, why in study.left_out.items())
    for line in (*study.reasons, *left_out, f"{len(runs)} runs in {folder}{study.where}"):
        console.print(line, markup=False)
    with interruption_noted(console, "the same command goes on from here"):
        failed = (study.make_runs or execute)(folder, runs, console)
    content = content_of(folder)
    content.print_summary(console)
    if study.hint:
        console.print(study.hint, markup=False)
    report = write_page(content, folder)
    console.print(f"report: {report}", markup=False)
    print_study(folder, report, json_)
    if failed:
        raise RunFailedError(f"{failed} of {len(runs)} runs failed; the report says why")
