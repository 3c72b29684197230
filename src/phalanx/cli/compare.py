"""`phalanx compare`."""

from __future__ import annotations

import sys
from pathlib import Path

from phalanx.report.bitwise import judge, read_bitwise_run, rows_of

EXIT_DIFFERENT = 1


def compare(one: Path, other: Path, /) -> None:
    """Compare two bitwise runs bit by bit, and name the first step and parameter that differ.

    Exit code: 0 if the runs are identical, 1 if they differ, 2 if their records do not suffice.

    For example:

        phalanx compare runs/train/one-rank runs/train/four-ranks

        phalanx compare runs/before runs/after && echo "the change kept every bit"

    Parameters
    ----------
    one
        Folder of the records of a run.
    other
        Folder of the records of the other run.
    """
    runs = [read_bitwise_run(folder) for folder in (one, other)]
    is_same, sentences = judge(*runs)
    rows = rows_of(runs)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip())
    print("\n".join(sentences), flush=True)
    if not is_same:
        sys.exit(EXIT_DIFFERENT)
