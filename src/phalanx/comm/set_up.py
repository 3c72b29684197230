"""Collectives for setting up a group: objects, with a timeout that names the missing ranks."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from phalanx.comm.blocking_call import BlockingCall
from phalanx.comm.collectives.tree import children_of, parent_of
from phalanx.comm.communicators import SET_UP_TAG
from phalanx.comm.failure_detector import FailureDetector
from phalanx.comm.faults import is_fault_tolerant
from phalanx.comm.in_flight import keep_alive_forever
from phalanx.comm.mpi import mpi

T = TypeVar("T")


class SetupCommunicator:
    """Communicator for set-up, whose waits have timeouts.

    The method names are those of mpi4py. Objects go by messages along a tree: MPI's own collectives
    have no timeout, may return wrong data as success where a rank dies meanwhile (Open MPI), and
    gather the short ones of 64 ranks on rank 0, a connection each (Open MPI 5.0).
    """

    def __init__(
        self,
        communicator: Any,
        detector: FailureDetector,
        members: Sequence[int] | None = None,
        *,
        tag: int = SET_UP_TAG,
    ) -> None:
        """detector: of the ranks of `communicator`; its waits have timeouts. members: the ranks
        that take part, in their order, this one among them; None: all. tag: of the messages."""
        self._communicator, self._detector, self._tag = communicator, detector, tag
        self._members = range(communicator.Get_size()) if members is None else members
        self._rank = self._members.index(communicator.Get_rank())
        self.timeout_s: float | None = None
        """Timeout of each wait; None: that of the detector."""

    def Get_rank(self) -> int:  # noqa: N802  as mpi4py has it
        return self._rank

    def Get_size(self) -> int:  # noqa: N802  as mpi4py has it
        return len(self._members)

    def Barrier(self) -> None:  # noqa: N802  as mpi4py has it
        self.allgather(None)

    def allgather(self, value: Any) -> list[Any]:
        """Gather the pickled objects of all ranks.

        Cost: no rank sends or receives more than ⌈log₂ p⌉ times the compressed objects of all.
        """
        rank, size = self.Get_rank(), self.Get_size()
        values = [value]
        for child in children_of(rank, size):  # whose subtree is the ranks up to the next child
            values += _unpack(self._receive(child))
        if (parent := parent_of(rank)) is not None:
            self._send(_pack(values), [parent])
        gathered: list[Any] = self.bcast(values)
        return gathered

    def bcast(self, value: Any) -> Any:
        """Broadcast the pickled object of rank 0."""
        parent = parent_of(self.Get_rank())
        text = _pack(value) if parent is None else self._receive(parent)
        self._send(text, reversed(children_of(self.Get_rank(), self.Get_size())))
        return value if parent is None else _unpack(text)

    def _send(self, text: bytes, peers: Iterable[int]) -> None:
        places = [self._members[peer] for peer in peers]
        requests = [self._communicator.Isend(text, place, self._tag) for place in places]
        if (bell := self._detector.bell) is not None:
            for place in places:
                bell.ring(place)  # it may sleep
        for request in requests:
            await_request(self._detector, request, text, timeout_s=self.timeout_s)

    def _receive(self, peer: int) -> bytes:
        status, messages, place = mpi().Status(), [], self._members[peer]

        def has_come() -> bool:
            message = self._communicator.Improbe(place, self._tag, status)
            messages.extend([] if message is None else [message])
            return bool(messages)

        self._detector.until(has_come, self.timeout_s, peers=lambda: [place])
        text = bytearray(status.Get_count())
        messages[0].Recv(text)
        return bytes(text)


def _pack(value: Any) -> bytes:
    """Return a pickled object, compressed: what the ranks of a node say is nearly the same."""
    return zlib.compress(pickle.dumps(value), 1)


def _unpack(text: bytes) -> Any:
    return pickle.loads(zlib.decompress(text))


def await_request(
    detector: FailureDetector, request: Any, *memory: object, timeout_s: float | None = None
) -> None:
    """Wait for a request of MPI. memory: that it uses, which it gets for good when this fails.

    Raises: WaitTimeoutError naming the ranks that did not come; PeerFailedError.
    """
    try:
        detector.until(request.Test, timeout_s)
    except BaseException:
        keep_alive_forever((request, memory))
        raise


def await_call(detector: FailureDetector, call: Callable[[], T]) -> T:
    """Return the result of a blocking call of MPI: where ranks may die, from a thread, as it has no
    timeout. Raises: as `await_request`."""
    if not is_fault_tolerant():
        return call()
    begun = BlockingCall(call)
    # Meanwhile without a call of MPI: two threads that hear of a death at once crash Open MPI.
    with detector.waiting():
        is_in_time = begun.wait(detector.timeout_s)
    if not is_in_time:
        detector.until(begun.settle, timeout_s=0)
    return begun.result()


def duplicate(communicator: Any, detector: FailureDetector) -> Any:
    """A communicator of the same ranks. Raises: as `await_request`."""
    made, request = communicator.Idup()
    await_request(detector, request, made)
    return made
