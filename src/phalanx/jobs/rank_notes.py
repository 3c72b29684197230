"""Notes on a rank, written by the rank or its watcher, for the processes that started it: that it
is connected, that it listens for stop requests, how it ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Literal, NamedTuple

from phalanx.errors import EXIT_STOPPED
from phalanx.jobs.detect import detect
from phalanx.jobs.state_clock import StateClock

NOTES = "PHALANX_FAILURE_NOTES"
"""Folder in which a rank records its failure before it ends the others: MPICH's launcher kills the
watcher at once."""
ASKED_TO_END = (-signal.SIGTERM, 128 + signal.SIGTERM)
"""Exit codes of ranks that a launcher has ended, because another one has failed."""
JOIN_S = 2.0
"""Time for connected ranks to record that, after a death."""
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
        """Return whether it neither completed nor stopped as asked."""
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
    """Return the failures of the ranks in order.

    deaths_first: for a job whose launcher kills no rank: ranks that saw a death come after it. A
    rank that a launcher ended because another had failed comes after that one.
    """

    def order(end: RankEnd) -> tuple[bool, bool, float]:
        is_late = deaths_first and end.exit_code >= 0
        return end.exit_code in ASKED_TO_END, is_late, end.at_s

    ends = map(_read, folder.glob("ended-*.json"))
    return sorted((end for end in ends if end.is_failure), key=order)


def _read(file: Path) -> RankEnd:
    return RankEnd(**json.loads(file.read_text()))


def note_joined(num_ranks: int) -> None:
    """Record that this rank is connected, if that is read. Never raises.

    num_ranks: that have met with it.
    """
    folder, launched = os.environ.get(NOTES), detect(os.environ)
    if folder is not None and launched is not None and num_ranks > 1:
        with contextlib.suppress(OSError):
            (Path(folder) / f"joined-{launched.rank}-of-{num_ranks}").touch()


class EarlyDeath:
    """Poll for a death that no rank survives: of a rank before all are connected. Until then Open
    MPI makes the other ranks wait for the dead one forever."""

    def __init__(self, folder: Path, ranks: int) -> None:
        """folder: of the logs of the ranks."""
        self._folder, self._ranks = folder, ranks
        self._clock, self._have_met = StateClock(), False

    def why(self, *, is_over: bool = False) -> str:
        """Return the rank that died before all were connected; empty if none did.

        is_over: the job has ended with an error, so that no rank can still record that all were
        connected.
        """
        if self._have_met:
            return ""
        died = next(iter(read_failures(self._folder)), None)
        if died is None or died.exit_code >= 0:
            return ""
        sizes = [int(path.name.rpartition("-")[2]) for path in self._folder.glob("joined-*-of-*")]
        # Or those of a part that MPI has made of all.
        self._have_met = len(sizes) == self._ranks or any(size < self._ranks for size in sizes)
        waited_s = self._clock.see(died.rank, time.monotonic())
        if self._have_met or (waited_s < JOIN_S and not is_over):
            return ""
        return (
            f"rank {died.rank} died ({signal.Signals(-died.exit_code).name}) before all ranks were "
            "connected, which no rank survives: --restarts N restarts all of them"
        )


def note_state(rank: int, state: Literal["listening", "stopped", "over"]) -> None:
    """Write down whether this rank stops with a checkpoint when it is asked to, or has, where
    anybody reads it. Never raises."""
    folder = os.environ.get(NOTES)
    if folder is not None:
        temporary = Path(folder) / f".listening-{rank}.json"
        with contextlib.suppress(OSError):
            temporary.write_text(json.dumps(state))
            temporary.replace(temporary.with_name(temporary.name[1:]))


def is_listening(folder: Path) -> bool:
    """Return whether a rank has written that it listens."""
    return "listening" in _states(folder, "*")


def has_stopped(folder: Path, rank: int) -> bool:
    """Return whether a rank has stopped as it was asked to, and has but to end its process."""
    return "stopped" in _states(folder, rank)


def _states(folder: Path, rank: int | str) -> set[str]:
    states = set()
    for path in folder.glob(f"listening-{rank}.json"):
        with contextlib.suppress(OSError, ValueError):
            states.add(json.loads(path.read_text()))
    return states
