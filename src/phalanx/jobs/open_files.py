"""File descriptors of this process: how many it may have, and how many its connections need."""

from __future__ import annotations

import errno
import os
import resource
import sys
from contextlib import suppress

from phalanx.errors import UserError

SPARE_FILES = 64
"""Descriptors left to the program, and to MPI beside its connections."""
LANE_PEERS = 64
"""Peers in long collectives of several nodes, at most (`comm/collectives/lanes.py`)."""


def open_files() -> int | None:
    """Return the number of descriptors in use; None where the system does not say."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError as error:
        return file_limit() if error.errno == errno.EMFILE else None


def file_limit(*, hard: bool = False) -> int:
    """Return the most descriptors of this process now; hard: that it may ask for."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[hard]
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


def raise_file_limit() -> None:
    """Let this process, and those that it starts, have as many descriptors as they may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def files_needed(num_ranks: int, num_remote: int) -> int:
    """Return the descriptors that a rank needs for connections in collectives of few bytes, and in
    those that sum gradients. num_remote: ranks on other nodes, each a connection if it is a peer.
    """
    few_peers = 4 * (num_ranks - 1).bit_length()  # trees over ranks and over nodes
    return SPARE_FILES + min(num_remote, few_peers + LANE_PEERS)


def check_file_limit(num_ranks: int, num_remote: int) -> None:
    """Raises: UserError where this rank would run out of descriptors. Arguments: as above."""
    used, limit = open_files() or 0, file_limit()
    needed = used + files_needed(num_ranks, num_remote)
    if num_remote and limit < needed:
        raise UserError(
            f"this rank, of {num_ranks}, may have {limit} open files, but needs {needed} for its "
            f"connections: run ulimit -n {needed} on every node before the launcher starts"
        )


def shortage() -> str:
    """Describe that all descriptors are in use, for an error's end; empty where they are not."""
    used, limit = open_files() or 0, file_limit()
    if used < limit - 1:
        return ""
    return (
        f"; this rank has all of its {limit} files open, and cannot connect to another rank: raise "
        "the limit with ulimit -n"
    )
