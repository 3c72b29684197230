"""Make and report the runs of a study; this needs what draws reports (`phalanx[study]`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from phalanx.cli.as_json import print_study
from phalanx.cli.interruption import interruption_noted
from phalanx.errors import RunFailedError
from phalanx.report.page import write_report


def run_study(
    folder: Path,
    planned: Sequence[object],
    console: Console,
    make_runs: Callable[[], int],
    print_summary: Callable[[Path, Console], None],
    json_: bool = False,
) -> None:
    """Make the runs of a study, print its summary and draw its page.

    make_runs: returns how many runs failed.
    Raises: RunFailedError when any failed.
    """
    with interruption_noted(console, "the same command goes on from here"):
        failed = make_runs()
    print_summary(folder, console)
    report = write_report(folder)
    console.print(f"report: {report}", markup=False)
    print_study(folder, report, json_)
    if failed:
        raise RunFailedError(f"{failed} of {len(planned)} runs failed; the report says why")
