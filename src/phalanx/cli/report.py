"""`phalanx report`."""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from phalanx.report.folder import damaged_runs, newest_folder
from phalanx.report.page import write_report

RUNS = Path("runs")


def report(
    folder: Path | None = None,
    /,
    *,
    output: Path | None = None,
    open_: Annotated[bool, Parameter(name="--open", negative="")] = False,
) -> None:
    """Draw a study, or a single run, as one HTML page that needs no network.

    For example:

        phalanx report

        phalanx report runs/scaling --output comparison.html --open

    Parameters
    ----------
    folder
        Folder of a study or of a run. Default: the newest under ./runs.
    output
        Where the page is written. Default: report.html in the folder.
    open_
        Open the page in the browser.
    """
    chosen = folder or newest_folder(RUNS)
    page = write_report(chosen, output)
    for damage in damaged_runs(chosen):
        print(f"phalanx: left out: {damage}", file=sys.stderr)
    print(page)
    if open_:
        webbrowser.open(page.resolve().as_uri())
