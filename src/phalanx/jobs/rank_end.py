"""The end of a rank's process, written down by itself or by who watches it, and its arrival."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path
from typing import NamedTuple

from phalanx.errors import EXIT_STOPPED
from phalanx.jobs.detect import detect

NOTES = "PHALANX_FAILURE_NOTES"
"""Folder in which a rank writes down its failure before it ends the others: MPICH's launcher kills
whoever watches it at once."""
ASKED_TO_END = (-signal.SIGTERM, 128 + signal.SIGTERM)
"""Exit codes of ranks that a launcher has ended, because another one has failed."""
_END_BYTES = 256
"""Room that holds a `RankEnd`."""


class RankEnd(NamedTuple):
    """End of a rank's process."""

    rank: int
    exit_code: int
    """Negative for a signal."""
    at_s: float
    """Wall-clock time; of ranks on several nodes, by their own clocks."""

    @property
    def is_failure(self) -> bool:
        """Return whether it has neither come to its end nor stopped as it was asked to."""
        return self.exit_code not in (0, EXIT_STOPPED)


def end_file(folder: Path, rank: int) -> Path:
    """Return the file in which the end of a rank is written down."""
    return folder / f"ended-{rank}.json"


def reserve(folder: Path, rank: int) -> None:
    """Take the room on the disk in which a rank's end is written, for the case that it is full
    then. Never raises."""
    with contextlib.suppress(OSError):
        _reserved(folder, rank).write_text(" " * _END_BYTES)


def note(folder: Path, end: RankEnd) -> None:
    """Write down how a rank has ended, unless it has done so itself, in the room reserved."""
    file, reserved = end_file(folder, end.rank), _reserved(folder, end.rank)
    if file.exists():
        return
    with reserved.open("r+" if reserved.exists() else "w") as temporary:
        temporary.write(json.dumps(end._asdict()))
    reserved.replace(file)


def _reserved(folder: Path, rank: int) -> Path:
    return folder / f".end-{rank}"


def has_failed(folder: Path, rank: int) -> bool:
    """Return whether a rank's process has failed or died."""
    file = end_file(folder, rank)
    return file.exists() and _read(file).is_failure


def read_ends(folder: Path) -> dict[int, int]:
    """Return the exit codes of the ranks that have ended, by rank."""
    return {end.rank: end.exit_code for end in map(_read, folder.glob("ended-*.json"))}


def read_failures(folder: Path, *, deaths_first: bool = False) -> list[RankEnd]:
    """Return the failures of the ranks, the first first.

    deaths_first: of a job whose launcher kills nobody: those who saw a death come after it.
    A rank that a launcher ended because another had failed comes after that one.
    """

    def order(end: RankEnd) -> tuple[bool, bool, float]:
        is_late = deaths_first and end.exit_code >= 0
        return end.exit_code in ASKED_TO_END, is_late, end.at_s

    ends = map(_read, folder.glob("ended-*.json"))
    return sorted((end for end in ends if end.is_failure), key=order)


def _read(file: Path) -> RankEnd:
    return RankEnd(**json.loads(file.read_text()))


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
