"""The failure of a rank's process, written down by itself or by who watches it, and its arrival."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import NamedTuple

from phalanx.jobs.detect import detect

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


def reserve(folder: Path, rank: int) -> None:
    """Take the room on the disk in which a rank's end is written, for the case that it is full
    then. Never raises."""
    with contextlib.suppress(OSError):
        _reserved(folder, rank).write_text(" " * _END_BYTES)


def note(folder: Path, failure: RankFailure) -> None:
    """Write down how a rank failed, unless it has done so itself."""
    file = failure_file(folder, failure.rank)
    if not file.exists():
        write_end(folder, failure.rank, file, json.dumps(failure._asdict()))


def write_end(folder: Path, rank: int, file: Path, text: str) -> None:
    """Write the end of a rank into a new file, in the room that was reserved."""
    reserved = _reserved(folder, rank)
    with reserved.open("r+" if reserved.exists() else "w") as temporary:
        temporary.write(text)
    reserved.replace(file)


def forget_reserved(folder: Path, rank: int) -> None:
    """Give back the room of a rank whose end needs no words."""
    _reserved(folder, rank).unlink(missing_ok=True)


def _reserved(folder: Path, rank: int) -> Path:
    return folder / f".end-{rank}"


_END_BYTES = 256
"""That hold a `RankFailure`."""


def note_joined(num_ranks: int) -> None:
    """Write down that this rank has met others, where anybody reads it. Never raises.

    num_ranks: that have met with it.
    """
    folder, launched = os.environ.get(NOTES), detect(os.environ)
    if folder is not None and launched is not None and num_ranks > 1:
        with contextlib.suppress(OSError):
            (Path(folder) / f"joined-{launched.rank}-of-{num_ranks}").touch()


def has_joined(folder: Path, num_ranks: int) -> bool:
    """Return whether all ranks of a job have met, or those of a part that MPI has made of all."""
    sizes = [int(path.name.rpartition("-")[2]) for path in folder.glob("joined-*-of-*")]
    return len(sizes) == num_ranks or any(size < num_ranks for size in sizes)
