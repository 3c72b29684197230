"""Tags of a group's communicator, and its end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from phalanx.comm.collectives.tree import children_of, parent_of
from phalanx.comm.mpi import mpi
from phalanx.comm.select import FEW_RANKS
from phalanx.comm.wait import WaitPolicy, WaitTimeoutError, wait_until

CLOSING_TIMEOUT_S = 1.0

TAGS = 2**15  # the fewest that MPI grants; all that we use grant 2**19 or more
# Tags tell the kinds of messages apart: notices and set-up, collectives, those of users.
CLOSING_TAG, SET_UP_TAG = TAGS - 1, TAGS - 2
FIRST_COLLECTIVE_TAG, FIRST_USER_TAG = TAGS, 2 * TAGS


class ClosingBarrier:
    """Barrier by messages, with which members say that they have closed a communicator.

    Not the library's: where a member closes a group in which others still sum, MPICH 4.3 takes the
    barrier's messages for those of the all-reduce, and that returns wrong sums.
    Of many along a tree of rank 0, as each peer is a connection.
    """

    def __init__(self, communicator: Any) -> None:
        """Begin; this rank has closed."""
        self._rounds = self._begin_rounds(communicator)
        self._requests = next(self._rounds)

    def is_over(self) -> bool:
        """Return whether all members have closed; polled until then."""
        while all(request.Test() for request in self._requests):
            following = next(self._rounds, None)
            if following is None:
                return True
            self._requests = following
        return False

    @staticmethod
    def _begin_rounds(communicator: Any) -> Iterator[list[Any]]:
        """Begin the messages of each round when those of the one before have arrived."""
        rank, size = communicator.Get_rank(), communicator.Get_size()
        parent, children = parent_of(rank), children_of(rank, size)
        if size <= FEW_RANKS:  # nobody between, who may poll late
            parent, children = (0, []) if rank else (None, list(range(1, size)))
        yield [communicator.Irecv(bytearray(), child, CLOSING_TAG) for child in children]
        if parent is not None:
            sending = communicator.Isend(b"", parent, CLOSING_TAG)
            yield [sending, communicator.Irecv(bytearray(), parent, CLOSING_TAG)]
        yield [communicator.Isend(b"", child, CLOSING_TAG) for child in children]


class OpenCommunicators:
    """Communicators that this rank has closed, and that some members still use.

    A communicator's number is given to another one after it was freed. Messages that a slow member
    still sent would reach that one; Open MPI 5.0 aborts the job when their sender is not in it. So
    each is freed once all members have closed it.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._closing: list[tuple[Any, ClosingBarrier]] = []
        self._open: list[Any] = []

    def track(self, communicator: Any) -> Any:
        """Remember a communicator that `revoke` is to revoke, until it is freed here; return it."""
        self._open.append(communicator)
        return communicator

    def forget(self, communicator: Any) -> None:
        """Leave it as it is."""
        self._open = [other for other in self._open if other is not communicator]

    def revoke(self) -> None:
        """Free every rank that waits on one of them: MPI's calls end with an error there, now and
        later on. Only where MPI is fault tolerant."""
        for communicator in self._open:
            communicator.Revoke()
        self._open.clear()

    def close(self, communicator: Any, policy: WaitPolicy, timeout_s: float) -> None:
        """Free it when all members have closed it: here and now if that is soon, else later.

        Nobody waits for it while an earlier one is not freed: ranks that close many in different
        orders would wait for each.
        """
        with self._guard:
            has_waited = bool(self._closing)
            self._closing.append((communicator, ClosingBarrier(communicator)))
        if has_waited:
            self.sweep()
        else:
            self.finish(policy, timeout_s)

    def finish(self, policy: WaitPolicy, timeout_s: float) -> None:
        """Free those that all members have closed; wait for the others up to `timeout_s`."""
        try:
            wait_until(self.sweep, policy, timeout_s=timeout_s, on_timeout=lambda: "not all close")
        except WaitTimeoutError:
            return

    def sweep(self) -> bool:
        """Free those that all members have closed; whether none is left."""
        with self._guard:
            left = []
            for communicator, barrier in self._closing:
                if barrier.is_over():
                    drain(communicator)
                    self.forget(communicator)
                    communicator.Free()
                else:
                    left.append((communicator, barrier))
            self._closing = left
            return not left


@dataclass(frozen=True, kw_only=True)
class Heritage:
    """Parts of a world in which ranks died that the world of the survivors takes over.

    Communicators are few there: Open MPI 5.0.11 crashes in ranks that hear of a death while they
    make one with the dead rank.
    """

    original_ranks: tuple[int, ...]
    """Ranks of the survivors in the world that they started in."""
    rendezvous: Any
    """Communicator of all ranks of that world."""
    communicators: OpenCommunicators
    """Remembers those of the new world, the first of which is the one it is made on."""
    on_one_node: bool


def drain(communicator: Any) -> None:
    """Receive, and forget, what has arrived."""
    status = mpi().Status()
    while (message := communicator.Improbe(status=status)) is not None:
        message.Recv(bytearray(status.Get_count()))


def tag_limit() -> int:
    """Return the greatest tag of messages, which MPI attaches to the communicator of all alone."""
    return int(mpi().COMM_WORLD.Get_attr(mpi().TAG_UB))
