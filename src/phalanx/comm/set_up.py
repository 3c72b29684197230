"""Collectives for setting up a group: objects, with a timeout that names the missing ranks."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from phalanx.comm.blocking_call import BlockingCall
from phalanx.comm.collectives.tree import children_of, parent_of
from phalanx.comm.communicators import SET_UP_TAG
from phalanx.comm.failure_detector import FailureDetector
from phalanx.comm.faults import is_fault_tolerant
from phalanx.comm.in_flight import keep_alive_forever
from phalanx.comm.mpi import mpi
from phalanx.comm.select import FEW_RANKS

T = TypeVar("T")


class SetupCommunicator:
    """Communicator for set-up, whose waits have timeouts.

    The method names are those of mpi4py.
    """

    def __init__(self, communicator: Any, detector: FailureDetector) -> None:
        """detector: of the ranks of `communicator`; its waits have timeouts."""
        self._communicator, self._detector = communicator, detector

    def Get_rank(self) -> int:  # noqa: N802  as mpi4py has it
        return int(self._communicator.Get_rank())

    def Get_size(self) -> int:  # noqa: N802  as mpi4py has it
        return int(self._communicator.Get_size())

    def Barrier(self) -> None:  # noqa: N802  as mpi4py has it
        if is_fault_tolerant():
            self._exchange(None)
        else:
            await_request(self._detector, self._communicator.Ibarrier())

    def allgather(self, value: Any) -> list[Any]:
        """Gather the pickled objects of all ranks."""
        # Open MPI 5.0 gathers the short ones of 64 ranks and more on rank 0, a connection each.
        if is_fault_tolerant() or self.Get_size() > FEW_RANKS:
            return self._exchange(value)
        self.Barrier()  # what follows has no timeout, and need not wait
        values: list[Any] = self._communicator.allgather(value)
        return values

    def bcast(self, value: Any) -> Any:
        """Broadcast the pickled object of rank 0."""
        if is_fault_tolerant():
            return self._forward(value)
        self.Barrier()
        return self._communicator.bcast(value)

    def _exchange(self, value: Any) -> list[Any]:
        """Gather the pickled objects of all ranks by messages along a tree: where a rank dies
        meanwhile, Open MPI's own collectives may return wrong data as success.

        Cost: no rank sends or receives more than ⌈log₂ p⌉ times the compressed objects of all.
        """
        rank, size = self.Get_rank(), self.Get_size()
        values = [value]
        for child in children_of(rank, size):  # whose subtree is the ranks up to the next child
            values += _unpack(self._receive(child))
        if (parent := parent_of(rank)) is not None:
            self._send(_pack(values), [parent])
        gathered: list[Any] = self._forward(values)
        return gathered

    def _forward(self, value: Any) -> Any:
        """Return the object of rank 0, which comes along the tree."""
        parent = parent_of(self.Get_rank())
        text = _pack(value) if parent is None else self._receive(parent)
        self._send(text, reversed(children_of(self.Get_rank(), self.Get_size())))
        return value if parent is None else _unpack(text)

    def _send(self, text: bytes, peers: Iterable[int]) -> None:
        for request in [self._communicator.Isend(text, peer, SET_UP_TAG) for peer in peers]:
            await_request(self._detector, request, text)

    def _receive(self, peer: int) -> bytes:
        status, messages = mpi().Status(), []

        def has_come() -> bool:
            message = self._communicator.Improbe(peer, SET_UP_TAG, status)
            messages.extend([] if message is None else [message])
            return bool(messages)

        self._detector.until(has_come)
        text = bytearray(status.Get_count())
        messages[0].Recv(text)
        return bytes(text)

    def split(self, color: int, members: Sequence[int]) -> SetupCommunicator:
        """Split off the ranks with the same color. Every rank must have arrived: MPI has no
        timeout for this. members: their ranks in the world. `free` the result."""
        split = partial(self._communicator.Split, color, self.Get_rank())
        communicator = await_call(self._detector, split)
        return SetupCommunicator(communicator, self._detector.subset(communicator, tuple(members)))

    def free(self) -> None:
        self._detector.close()
        self._communicator.Free()


def _pack(value: Any) -> bytes:
    """Return a pickled object, compressed: what the ranks of a node say is nearly the same."""
    return zlib.compress(pickle.dumps(value), 1)


def _unpack(text: bytes) -> Any:
    return pickle.loads(zlib.decompress(text))


def await_request(detector: FailureDetector, request: Any, *memory: object) -> None:
    """Wait for a collective of MPI. memory: that it uses, which it gets for good when this fails.

    Raises: WaitTimeoutError naming the ranks that did not come; PeerFailedError.
    """
    try:
        detector.until(request.Test)
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
