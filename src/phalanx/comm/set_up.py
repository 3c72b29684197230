"""Collectives for setting up a group: objects, with a timeout that names the missing ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phalanx.comm.failure_detector import FailureDetector
from phalanx.comm.faults import checked_for_deaths
from phalanx.comm.in_flight import keep_alive_forever


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
        await_request(self._detector, self._communicator.Ibarrier())

    def allgather(self, value: Any) -> list[Any]:
        """Gather the pickled objects of all ranks."""
        self.Barrier()  # what follows has no timeout, and need not wait
        with checked_for_deaths(self._communicator):
            values: list[Any] = self._communicator.allgather(value)
        return values

    def bcast(self, value: Any) -> Any:
        """Broadcast the pickled object of rank 0."""
        self.Barrier()
        with checked_for_deaths(self._communicator):
            return self._communicator.bcast(value)

    def split(self, color: int, members: Sequence[int]) -> SetupCommunicator:
        """Split off the ranks with the same color. Every rank must have arrived: MPI has no
        timeout for this. members: their ranks in the world. `free` the result."""
        communicator = self._communicator.Split(color, self.Get_rank())
        return SetupCommunicator(communicator, self._detector.subset(communicator, tuple(members)))

    def free(self) -> None:
        self._detector.close()
        self._communicator.Free()


def await_request(detector: FailureDetector, request: Any, *memory: object) -> None:
    """Wait for a collective of MPI. memory: that it uses, which it gets for good when this fails.

    Raises: WaitTimeoutError naming the ranks that did not come; PeerFailedError.
    """
    try:
        detector.until(request.Test)
    except BaseException:
        keep_alive_forever((request, memory))
        raise


def duplicate(communicator: Any, detector: FailureDetector) -> Any:
    """A communicator of the same ranks. Raises: as `await_request`."""
    made, request = communicator.Idup()
    await_request(detector, request, made)
    return made
