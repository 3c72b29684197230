"""Deaths of ranks as MPI reports them: Open MPI with ULFM, elsewhere never."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from phalanx.comm.errors import PeerFailedError
from phalanx.comm.mpi import is_stand_in, mpi
from phalanx.jobs.survival import is_started_to_survive

Fault = Literal["died", "left"]

_watched: list[Any] = []
"""Communicators of this process whose revocation ends every wait."""


def is_fault_tolerant() -> bool:
    """Return whether communicators stay usable when a rank dies: Open MPI, started with ULFM."""
    return is_started_to_survive(os.environ) and not is_stand_in()


def fault_in(error: BaseException) -> Fault | None:
    """Return what an error of MPI says of the peers; None for any other error.

    died: the process of one is gone; left: one has revoked the communicator.
    """
    library = mpi()
    if not is_fault_tolerant() or not isinstance(error, library.Exception):
        return None
    kind = error.Get_error_class()
    # The making of a communicator in which a member dies ends with an internal error.
    if kind in (library.ERR_PROC_FAILED, library.ERR_PROC_FAILED_PENDING, library.ERR_INTERN):
        return "died"
    return "left" if kind == library.ERR_REVOKED else None


def dead_ranks(communicator: Any) -> list[int]:
    """Return the ranks of `communicator` whose processes are known to be gone. Local."""
    return sorted(ranks_in(communicator.Get_group(), communicator.Get_failed()))


def ranks_in(everyone: Any, some: Any) -> list[int]:
    """Return the ranks in a group of MPI of the members of another one; both groups are freed."""
    ranks = some.Translate_ranks(None, everyone)
    some.Free()
    everyone.Free()
    return [int(rank) for rank in ranks]


@contextmanager
def checked_for_deaths(communicator: Any) -> Iterator[None]:
    """Trust no collective of MPI's, in the block, whose ranks are not all alive after it.

    One that a death has cut short may report success, and leave values that nobody has sent.
    Raises: PeerFailedError.
    """
    try:
        yield
    except mpi().Exception:
        raise
    except Exception as error:  # values may be unreadable
        _raise_if_dead(communicator, error)
        raise
    _raise_if_dead(communicator)


def _raise_if_dead(communicator: Any, cause: Exception | None = None) -> None:
    if is_fault_tolerant() and (dead := dead_ranks(communicator)):
        ranks = ", ".join(map(str, dead))
        raise PeerFailedError(f"a collective of MPI was cut short: dead ranks: {ranks}") from cause


def watch(communicator: Any) -> None:
    """End the waits of this process, also those in shared memory, once it is revoked."""
    _watched.append(communicator)


def unwatch(communicator: Any) -> None:
    """Wait on after its revocation; no error if it was not watched."""
    _watched[:] = [other for other in _watched if other is not communicator]


@contextmanager
def watched(communicator: Any) -> Iterator[None]:
    """Watch it during the block."""
    watch(communicator)
    try:
        yield
    finally:
        unwatch(communicator)


def raise_if_left() -> None:
    """Raises: PeerFailedError when a peer has revoked a watched communicator."""
    for communicator in _watched:
        if communicator.Is_revoked():
            raise left_error()


def left_error() -> PeerFailedError:
    return PeerFailedError("another rank has noticed a failure and has left its groups to recover")


def move_messages() -> None:
    """Let MPI make progress during a wait elsewhere. Raises: PeerFailedError, as above."""
    mpi().COMM_SELF.Iprobe()  # one that no death can break
    raise_if_left()
