"""The failure of a rank, as another one finds it when it is ended."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

from phalanx.parallel.run_group import RunGroup
from phalanx.records.events import StartedEvent
from phalanx.records.files import rank_file, read_events, read_failure
from phalanx.records.last_collectives import last_collectives_file
from phalanx.records.schema import Outcome


def known_failure(folder: Path, group: RunGroup) -> Outcome | None:
    """Return the failure of a rank, if that is why the launcher now ends the others.

    A rank that is ended as this one is leaves its last collectives; one that was killed does not.
    """
    with contextlib.suppress(Exception):
        failure = read_failure(folder)
        if failure is not None:
            return Outcome(status="failed", error=failure.message, rank=failure.rank)
        if not group.recorders():
            return None
        for rank in range(1, group.size):
            file = rank_file(folder, rank)
            first = next(iter(read_events(file)), None) if file.exists() else None
            if isinstance(first, StartedEvent) and _is_killed(first, folder):
                error = f"rank {rank} ended without a word"
                return Outcome(status="failed", error=error, rank=rank)
    return None


def _is_killed(rank: StartedEvent, folder: Path) -> bool:
    """Return whether the process of a rank on this node is gone without having written why."""
    if rank.hostname != socket.gethostname() or last_collectives_file(folder, rank.rank).exists():
        return False
    try:
        os.kill(rank.process_id, 0)
    except ProcessLookupError:
        return True
    return False
