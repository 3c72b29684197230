"""The failure of a rank's process, written down by itself or by who watches it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

NOTES = "PHALANX_FAILURE_NOTES"
"""Folder in which a rank writes down its failure before it ends the others: MPICH's launcher kills
whoever watches it at once."""


class RankFailure(NamedTuple):
    """Failure of a rank's process."""

    rank: int
    exit_code: int
    """Negative for a signal."""
    at_s: float
    """Wall-clock time; of ranks on several nodes, by their own clocks."""


def failure_file(folder: Path, rank: int) -> Path:
    """Return the file in which the failure of a rank is written down."""
    return folder / f"failed-{rank}.json"


def note(folder: Path, failure: RankFailure) -> None:
    """Write down how a rank failed, unless it has done so itself."""
    file = failure_file(folder, failure.rank)
    if file.exists():
        return
    temporary = folder / f".failed-{failure.rank}"
    temporary.write_text(json.dumps(failure._asdict()))
    temporary.replace(file)
