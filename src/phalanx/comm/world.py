"""Who is there: rank, size and node, on communicators of our own.

`World.create()` is where MPI is initialised; importing Phalanx never does it.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Any, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from phalanx.comm.wait import WaitPolicy, wait_until
from phalanx.launch.cores import usable_cores

Object = TypeVar("Object")

# Open MPI's one-sided UCX component complains on stderr when a shared window is made, and is not
# used for it. Set before MPI is initialised; the user's own setting wins.
QUIET = {"OMPI_MCA_osc": "^ucx"}


class World:
    """The ranks of the job, as seen from one of them.

    Collective calls must be made by all ranks in the same order. Every wait ends after
    `timeout_s` with a `WaitTimeoutError` that names the ranks that did not come.
    """

    def __init__(self, communicator: Any, *, timeout_s: float) -> None:
        self._mpi = _mpi()
        self._comm = communicator.Dup()
        self._notices = communicator.Dup()
        self.node = communicator.Split_type(self._mpi.COMM_TYPE_SHARED)
        self.timeout_s = timeout_s
        self.rank: int = self._comm.Get_rank()
        self.size: int = self._comm.Get_size()
        self.local_rank: int = self.node.Get_rank()
        self.local_size: int = self.node.Get_size()
        self.hostname = socket.gethostname()
        self.policy = WaitPolicy.for_node(self.local_size, usable_cores())

    @classmethod
    def create(cls, *, timeout_s: float = 300.0) -> World:
        """Initialise MPI, if nobody has yet, and join the ranks that its launcher started."""
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        return cls(_mpi().COMM_WORLD, timeout_s=timeout_s)

    @property
    def on_one_node(self) -> bool:
        return self.local_size == self.size

    @property
    def library(self) -> str:
        """Name and version of the MPI library, its first line."""
        text: str = self._mpi.Get_library_version()
        return text.splitlines()[0].split(",")[0].strip(" \0")

    def barrier(self, name: str = "barrier") -> None:
        self._finish(self._comm.Ibarrier(), name)

    def broadcast(self, buffer: NDArray[Any], *, root: int = 0) -> None:
        """Fill `buffer` on every rank with that of `root`, in place; same size and dtype."""
        for part in _chunks(buffer):
            self._finish(self._comm.Ibcast(part, root=root), "broadcast")

    def all_reduce(self, buffer: NDArray[Any]) -> None:
        """Sum `buffer` over all ranks, in place, by the MPI library's own algorithm."""
        for part in _chunks(buffer):
            request = self._comm.Iallreduce(self._mpi.IN_PLACE, part, op=self._mpi.SUM)
            self._finish(request, "all-reduce")

    def gather(self, values: NDArray[np.float64], *, root: int = 0) -> NDArray[np.float64] | None:
        """On `root` the (size, n) array of every rank's (n,) `values`, None elsewhere."""
        all_values = np.empty((self.size, *values.shape)) if self.rank == root else None
        self._finish(self._comm.Igather(values, all_values, root=root), "gather")
        return all_values

    def share(self, value: Object, *, root: int = 0) -> Object:
        """Every rank gets `root`'s object. Pickled: for set-up, between ranks that trust each
        other anyway because they run the same program."""
        shared: Object = self._comm.bcast(value, root=root)
        return shared

    def close(self) -> None:
        """Free the communicators. Collective."""
        for communicator in (self.node, self._notices, self._comm):
            communicator.Free()

    def _finish(self, request: Any, name: str) -> None:
        wait_until(
            request.Test,
            self.policy,
            timeout_s=self.timeout_s,
            on_timeout=lambda: (
                f"rank {self.rank} waited {self.timeout_s:g} s in {name} for {self._missing()}"
            ),
        )

    def _missing(self, grace_s: float = 2.0) -> str:
        """Who is not waiting too. Ranks that time out in the same collective tell each other so;
        one that stays silent is somewhere else, or gone."""
        silent = set(range(self.size)) - {self.rank}
        notices = [self._notices.isend(self.rank, dest=peer) for peer in silent]

        def heard_all() -> bool:
            while silent and self._notices.iprobe():
                silent.discard(self._notices.recv())
            return not silent

        try:
            wait_until(heard_all, self.policy, timeout_s=grace_s, on_timeout=lambda: "")
        except TimeoutError:
            return "rank " + ", ".join(map(str, sorted(silent)))
        finally:
            for notice in notices:
                if not notice.Test():
                    notice.Free()  # the peer is gone or busy; MPI ends the sending by itself
        return "the network: every rank is waiting"


def abort(exit_code: int) -> NoReturn:
    """End all ranks at once: the way out when one has failed, which the others, waiting for it in
    a collective, would never learn. Only this process when MPI is not in use."""
    initialized = sys.modules.get("mpi4py.MPI")
    if initialized and initialized.Is_initialized() and not initialized.Is_finalized():
        initialized.COMM_WORLD.Abort(exit_code)
    os._exit(exit_code)


MAX_COUNT = 2**30  # Open MPI 5.0 fails on 2³¹ elements and more


def _chunks(buffer: NDArray[Any]) -> list[NDArray[Any]]:
    flat = buffer.reshape(-1)
    if not np.shares_memory(flat, buffer) and buffer.size:
        raise ValueError("the buffer must be contiguous")
    return [flat[i : i + MAX_COUNT] for i in range(0, flat.size, MAX_COUNT)]


def _mpi() -> Any:
    from mpi4py import MPI

    return MPI
