"""`phalanx check`."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from phalanx.cli.console import Json, print_json
from phalanx.errors import UserError
from phalanx.jobs.allocation import check_ranks
from phalanx.jobs.detect import refuse_launcher
from phalanx.jobs.temporary import job_folder
from phalanx.study.program_check import CheckResult, check_program

EXIT_DIFFERENT = 1


def check(
    *words: Annotated[str, Parameter(allow_leading_hyphen=True)],
    ranks: Annotated[int, Parameter(name=["--ranks", "-n"])] = 2,
    steps: int = 5,
    json_: Json = False,
) -> None:
    """Check that a program of phalanx.start computes the same on several ranks as on one.

    Runs some steps twice in one process and once on the ranks, in float64 where it can, compares
    data, losses, parameters and what is logged, and names the first difference and its likely
    cause. Checkpoints and records go to a temporary folder, and the program ends after these steps.
    Exit code: 0 if everything agrees, 1 if something differs.

    For example:

        phalanx check -n 4 train.py

        phalanx check -n 4 --steps 20 train.py --lr 0.1

    Parameters
    ----------
    words
        Program and its arguments: `program.py …` or `-m module …`. Put options of check first.
    ranks
        Number of ranks; 3 show more than 2, since they split a batch unevenly.
    steps
        Number of updates, within the first epoch.
    """
    refuse_launcher("check", os.environ)
    for name, number, least in (("--ranks", ranks, 2), ("--steps", steps, 1)):
        if number < least:
            raise UserError(f"{name} {number}: phalanx check takes at least {least}")
    if words and words[0] != "-m" and not words[0].endswith(".py"):
        raise UserError(f"phalanx check takes program.py or -m module, not {words[0]}")
    check_ranks(ranks, os.environ)
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    with job_folder() as folder:
        result = check_program(words, ranks=ranks, steps=steps, folder=folder, console=console)
    if json_:
        print_json({"program": list(words), "same": not result.findings, **asdict(result)})
    else:
        print("\n".join(lines_of(result)), flush=True)
    if result.findings:
        sys.exit(EXIT_DIFFERENT)


def lines_of(result: CheckResult) -> list[str]:
    """Return a line for each finding and note."""
    lines = [finding.text for finding in result.findings]
    if not lines:
        digits = "7 digits, in float64" if result.is_double else "3 digits"
        lines = [
            f"the same on 1 and {result.ranks} ranks: data, losses and parameters of "
            f"{result.steps} steps, to {digits}"
        ]
    return lines + [f"note: {note}" for note in result.notes]
