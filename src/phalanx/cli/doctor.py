"""`phalanx doctor`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from rich.console import Console

from phalanx.cli.console import Json
from phalanx.doctor.checks import all_checks
from phalanx.doctor.examine import examine
from phalanx.doctor.show import as_json, show_table
from phalanx.errors import UserError
from phalanx.launch.allocation import check_ranks

EXIT_PROBLEM = 1
RUNS = Path("runs")


def doctor(
    *,
    ranks: int = 2,
    data_root: Path | None = None,
    json_: Json = False,
) -> None:
    """Examine this machine: what is installed, whether ranks find each other, what mends it.

    Ends with exit code 1 when there is a problem; warnings are none.

    For example:

        phalanx doctor

        phalanx doctor --ranks 8 --json

    Parameters
    ----------
    ranks
        How many ranks to start, and to judge cores and shared memory for.
    data_root
        Folder that holds the data sets. Default: $PHALANX_DATA, then the user's cache folder.
    """
    if ranks < 1:
        raise UserError(f"--ranks must be at least 1, not {ranks}")
    check_ranks(ranks, os.environ)
    findings = list(examine(all_checks(ranks, RUNS, data_root)))
    if json_:
        print(as_json(findings))
    else:
        show_table(findings, Console())
    if any(finding.status == "problem" for finding in findings):
        sys.exit(EXIT_PROBLEM)
