"""`phalanx report`."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from phalanx.cli.console import new_console
from phalanx.errors import print_note
from phalanx.report.build import content_of
from phalanx.report.folder import newest_folder
from phalanx.report.page import write_page
from phalanx.report.trace.chrome import TRACE_NAME
from phalanx.report.trace.read import is_traced
from phalanx.report.trace.show import show_trace

RUNS = Path("runs")


def report(
    folder: Path | None = None,
    /,
    *,
    output: Path | None = None,
    open_: Annotated[bool, Parameter(name="--open", negative="")] = False,
) -> None:
    """Draw a study or a single run as one HTML page that needs no network.

    If the program ran with trace=True, also writes the trace of all ranks.

    For example:

        phalanx report

        phalanx report runs/scaling --output comparison.html --open

    Parameters
    ----------
    folder
        Folder of a study or of a run. Default: the newest under ./runs.
    output
        File to write the page to. Default: report.html in the folder.
    open_
        Open the page in the browser.
    """
    chosen = folder or newest_folder(RUNS)
    if is_traced(chosen) and not (chosen / TRACE_NAME).exists():
        show_trace(chosen, new_console(json_=True))  # standard error, since the page is the result
    content = content_of(chosen)
    page = write_page(content, chosen, output)
    for row in content.data.runs:
        if row["status"] == "damaged":
            print_note(f"left out: {row['error'] or row['run']}")
    print(page)
    if open_:
        webbrowser.open(page.resolve().as_uri())
