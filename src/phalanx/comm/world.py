"""The world: rank, size and node of this process, on communicators of our own.

`World.create()` initialises MPI; importing Phalanx never does.
"""

from __future__ import annotations

import atexit
import os
import socket
import weakref
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from phalanx.comm.abort import abort_after_failure, finalize
from phalanx.comm.buffer import Buffer
from phalanx.comm.communicators import CLOSING_TIMEOUT_S, Heritage, OpenCommunicators, tag_limit
from phalanx.comm.connections import Connections
from phalanx.comm.errors import LauncherMismatchError
from phalanx.comm.failure_detector import NOTICE_TAG, FailureDetector
from phalanx.comm.faults import is_fault_tolerant, unwatch, watch
from phalanx.comm.flight_recorder import FlightRecorder
from phalanx.comm.gpu import query_gpu_support
from phalanx.comm.group import Group
from phalanx.comm.link import Link
from phalanx.comm.link_emulator import LinkEmulator
from phalanx.comm.messages import MAX_NETWORK_BYTES
from phalanx.comm.mpi import is_stand_in, mpi
from phalanx.comm.rank_labels import RankLabels, hosts_to_name
from phalanx.comm.set_up import SetupCommunicator, await_call, duplicate
from phalanx.comm.settings import RankSettings, Settings, agree, cores_of, exchange, read_settings
from phalanx.comm.shm import ShmGroup
from phalanx.comm.traffic import COUNT, TrafficCounter
from phalanx.comm.wait import WaitPolicy
from phalanx.comm.workers import refuse_worker
from phalanx.errors import UserError
from phalanx.jobs.detect import detect, how_to_start
from phalanx.jobs.open_files import check_file_limit, raise_file_limit
from phalanx.jobs.rank_notes import note_joined
from phalanx.jobs.survival import COLLECTIVES, check_components

Object = TypeVar("Object")

# Variables of Open MPI. Its one-sided UCX component complains on stderr when a program makes a
# shared window, and is not used for it. It sends up to 64 KB by TCP without an answer of the
# receiver; here as much as any of our messages between nodes has. They are set before MPI is
# initialised; the user's own setting wins.
_EAGER_BYTES = str(MAX_NETWORK_BYTES + 4096)  # includes the header
MPI_VARIABLES = {
    "OMPI_MCA_osc": "^ucx",
    "OMPI_MCA_btl_tcp_eager_limit": _EAGER_BYTES,
    "OMPI_MCA_btl_tcp_rndv_eager_limit": _EAGER_BYTES,
    "OMPI_MCA_btl_tcp_max_send_size": _EAGER_BYTES,
}


class World:
    """The ranks of the job, as seen from one of them; `World.create` joins them.

    All ranks make collective calls in the same order. Every wait ends after `timeout_s` with a
    `WaitTimeoutError` that names the ranks that did not arrive.

    With an emulated `link` every rank counts as a node of its own: no memory is shared, and all
    messages of groups go over the link. What MPI does by itself does not: making groups, `node`.

    Example::

        world = phalanx.World.create()
        values = np.ones(1000, dtype=np.float32)
        world.all_reduce(values)  # on every rank the sum over the ranks, in place
        if world.rank == 0:
            print(values[0], "ranks")

    Args:
        communicator: mpi4py communicator of the ranks.
        timeout_s: Longest wait for a peer, in seconds.
        link: Emulated network between the ranks, the same on every rank. None: that of the variable
            PHALANX_LINK, or none.
        check: True if this rank wants collectives to be compared before they are made; all are if
            any rank wants it. None: as the variable PHALANX_CHECK says.
        heritage: What a world of survivors takes over from the world in which ranks died;
            `communicator` is then this one's own. None: a new world.

    Raises:
        UserError: On every rank, if ranks differ in what shapes their collectives, if the
            environment's link is none, or if MPI would return wrong sums after a death.
    """

    def __init__(
        self,
        communicator: Any,
        *,
        timeout_s: float,
        link: Link | None = None,
        check: bool | None = None,
        heritage: Heritage | None = None,
    ) -> None:
        self._mpi = mpi()
        self.timeout_s = timeout_s
        """Longest wait for a peer, in seconds."""
        self.rank: int = communicator.Get_rank()
        """Number of this rank, from 0."""
        self.size: int = communicator.Get_size()
        """Number of ranks."""
        self.original_ranks = heritage.original_ranks if heritage else tuple(range(self.size))
        """Numbers of its ranks in the world that they started in, by which records are named."""
        self._still_open = heritage.communicators if heritage else OpenCommunicators()
        self.dependents: weakref.WeakSet[World] = weakref.WeakSet()
        """Worlds made of this one, abandoned with it."""
        self._end: Callable[[], None] | None = None
        self._comm = communicator
        if heritage is None:
            self._comm = self._still_open.track(self._duplicate(communicator))
        detector = self._make_detector(self._comm)
        set_up = SetupCommunicator(self._comm, detector)
        try:
            ranks = self._exchange_settings(link, check, set_up)
            settings = agree(ranks)
        except UserError:  # raised on every rank
            detector.close()
            self._comm.Free()
            raise
        self.link = link or Link.from_environment(os.environ)
        """Emulated network between the ranks; None: none."""
        self._link_emulator = None if self.link is None else LinkEmulator(self.link)
        is_on_one_node = heritage is not None and heritage.on_one_node
        self.node = self._comm if is_on_one_node else self._split_by_node(communicator, detector)
        """Communicator of this node's ranks; of a world with a link: of this rank alone."""
        self.local_rank: int = self.node.Get_rank()
        """Number of this rank on its node, from 0."""
        self.local_size: int = self.node.Get_size()
        """Number of ranks on this node."""
        self.hostname = socket.gethostname()
        """Name of this node."""
        nodes = self._nodes(set_up, detector)
        detector.close()
        on_this_node = [ranks[peer] for peer in range(self.size) if nodes[peer] == nodes[self.rank]]
        self.settings: Settings = replace(settings, cores=cores_of(on_this_node))
        """Settings that shape collectives, agreed by all ranks."""
        self.is_gpu_aware = settings.is_gpu_aware
        """True if GPU memory may be passed to MPI, on every rank: not where some hold other memory
        in the same calls."""
        self.policy = WaitPolicy.for_node(self.local_size, self.settings.cores)
        if self.link is not None:
            self.policy = WaitPolicy.for_network()
        self.recorder = FlightRecorder(self.original_rank)
        self.step_groups: weakref.WeakSet[ShmGroup] = weakref.WeakSet()
        """Groups whose calls are steps of a training, and nothing else."""
        hosts = hosts_to_name([own.host for own in ranks])
        self.group = self._make_group(nodes, hosts, settings)
        """Group of all ranks, with every collective."""
        self.rendezvous: Any = None
        """Communicator on which survivors find each other: never revoked; None where MPI ends all
        ranks when one dies."""
        self.is_met = False
        """True if survivors met in `finish` and found that one of them recovers."""
        if is_fault_tolerant():
            if not self.on_one_node:
                check_components({COLLECTIVES: "^", **os.environ})
            self.rendezvous = heritage.rendezvous if heritage else self._duplicate(self._comm)
            watch(self._comm)
            if heritage is None:
                note_joined(self.size)

    def _split_by_node(self, communicator: Any, detector: FailureDetector) -> Any:
        split = partial(communicator.Split_type, self._mpi.COMM_TYPE_SHARED)
        if self.link is not None:
            split = partial(communicator.Create_group, communicator.Get_group().Incl([self.rank]))
        return self._still_open.track(await_call(detector, split))

    @classmethod
    def create(
        cls,
        *,
        timeout_s: float = 300.0,
        link: Link | None = None,
        check: bool | None = None,
        communicator: Any = None,
    ) -> World:
        """Initialise MPI, unless that is done, and join the ranks that its launcher started.
        Collective.

        Args:
            timeout_s: Longest wait for a peer, in seconds.
            link: Emulated network between the ranks, the same on every rank. None: that of the
                variable PHALANX_LINK, or none.
            check: True to compare collectives before they are made. None: as the variable
                PHALANX_CHECK says.
            communicator: mpi4py communicator of the ranks to join. None: all ranks.

        Returns:
            The world of the ranks.

        Raises:
            LauncherMismatchError: If MPI sees other ranks than the launcher started, so that each
                would work alone.
            UserError: As `World`; in a worker process of a rank; and if this rank may not open as
                many files as its connections need.
        """
        refuse_worker()
        raise_file_limit()
        for name, value in MPI_VARIABLES.items():
            os.environ.setdefault(name, value)
        library = mpi()
        if library.Is_finalized():
            raise RuntimeError("MPI has been finalised in this process; it cannot start again")
        if not library.Is_initialized():
            library.Init_thread()  # the program set mpi4py.rc.initialize = False
            atexit.register(finalize, library)
        if not is_stand_in():
            check_thread_level(library)
            _check_launched(library)
            _check_files(library)
            atexit.register(abort_after_failure, library)  # runs before MPI's end
        communicator = communicator or library.COMM_WORLD
        return cls(communicator, timeout_s=timeout_s, link=link, check=check)

    @property
    def original_rank(self) -> int:
        """Rank of this process in the world in which it started."""
        return self.original_ranks[self.rank]

    @property
    def on_one_node(self) -> bool:
        """True if all ranks are on one node."""
        return self.local_size == self.size

    @property
    def traffic(self) -> TrafficCounter | None:
        """Counter of sent and received bytes; None where nothing is counted (`Group.traffic`)."""
        return self.group.traffic

    @property
    def library(self) -> str:
        """Name and version of the MPI library, its first line."""
        return _library_of(self._mpi)

    def barrier(self, name: str = "barrier") -> None:
        """Wait until every rank has arrived. Collective.

        Args:
            name: Name of the barrier in the error of a timeout.
        """
        self.group.barrier(name=name)

    def broadcast(self, buffer: NDArray[Any], *, root: int = 0) -> None:
        """Fill `buffer` on every rank with that of `root`, in place. Collective.

        Args:
            buffer: C-contiguous array, of the same size and dtype on every rank.
            root: Rank whose values all ranks get.
        """
        self.group.broadcast(Buffer.of(buffer), root=root)

    def all_reduce(self, values: Any) -> None:
        """Sum an array over all ranks, in place and in the order of the ranks. Collective.

        Args:
            values: C-contiguous NumPy array, or tensor on the CPU; of the same size and dtype on
                every rank.

        Raises:
            ValueError: For other arrays and tensors.
            TypeError: For elements without a sum.
        """
        self.group.all_reduce(Buffer.of(values))

    def gather(self, values: NDArray[np.float64], *, root: int = 0) -> NDArray[np.float64] | None:
        """Return every rank's values on one rank. Collective.

        Args:
            values: (n,) float64.
            root: Rank that gets them.

        Returns:
            (ranks, n) on `root`, None elsewhere.
        """
        part = Buffer.of(values)
        if self.rank != root:
            self.group.gather(None, part, root=root)
            return None
        all_values = np.empty((self.size, *values.shape))
        self.group.gather([Buffer.of(row) for row in all_values], part, root=root)
        return all_values

    def share(self, value: Object, *, root: int = 0) -> Object:
        """Return `root`'s object on every rank. Collective; pickled, so for set-up.

        Args:
            value: The object, where this rank is `root`; else anything.
            root: Rank whose object all ranks get.
        """
        shared: Object = self.group.share(value, root=root)
        return shared

    def duplicate(self, *, check: bool | None = None) -> World:
        """Return a world of the same ranks, on communicators of its own. Collective.

        Args:
            check: True to compare collectives before they are made. None: as the variable
                PHALANX_CHECK says.
        """
        made = World(self._comm, timeout_s=self.timeout_s, link=self.link, check=check)
        made.original_ranks, made.recorder.rank = self.original_ranks, self.original_rank
        self.dependents.add(made)
        return made

    def call_when_closed(self, end: Callable[[], None]) -> None:
        """Call a function after the world has been closed.

        Args:
            end: Function without arguments.
        """
        self._end = end

    @property
    def communicator(self) -> Any:
        """mpi4py communicator of all ranks, for the messages of Phalanx."""
        return self._comm

    def exchange(self, value: int) -> list[int]:
        """Return the numbers of all ranks, in their order. Collective.

        Args:
            value: This rank's number, of 64 bits.
        """
        rows = np.zeros(self.size, np.int64)
        rows[self.rank] = value
        parts = [Buffer.of(rows[rank : rank + 1]) for rank in range(self.size)]
        self.group.all_gather(parts, parts[self.rank])
        return [int(row) for row in rows]

    def hand_over(self, heir: World) -> None:
        """Give a world of the survivors what is counted, traced and called at the end.

        Args:
            heir: World of the survivors.
        """
        heir.recorder.label = self.recorder.label
        heir.recorder.trace(self.recorder.spans)
        heir.group.traffic = self.group.traffic
        heir._end = self._end

    def abandon(self) -> None:
        """Free all ranks that wait for this one in any group of this world, which can no longer be
        used. Not collective; only where MPI is fault tolerant (`recover`)."""
        unwatch(self._comm)
        self._still_open.revoke()
        for made in self.dependents:
            made.abandon()
        for group in self.recorder.registered():
            if isinstance(group, Group):
                group.abandon()

    def close_abandoned(self) -> None:
        """Free what an abandoned world has; its communicators stay. Not collective."""
        for made in self.dependents:
            made.close_abandoned()
        for group in self.recorder.registered():
            if isinstance(group, Group):
                group.abandon()
                group.close()
        if self._link_emulator is not None:
            self._link_emulator.close()

    def close(self) -> None:
        """Free the communicators. Collective."""
        unwatch(self._comm)
        self.group.close()
        self._still_open.finish(self.policy, CLOSING_TIMEOUT_S)
        if self._link_emulator is not None:
            self._link_emulator.close()
        if self.rendezvous is not None:
            self.rendezvous.Free()
        if self.node is not self._comm:
            self.node.Free()
        self._comm.Free()
        if self._end is not None:
            self._end()

    def _duplicate(self, communicator: Any) -> Any:
        """Meet all ranks for the first time; the error names missing ranks."""
        with closing(self._make_detector(communicator, tag=tag_limit())) as detector:
            return duplicate(communicator, detector)

    def _make_detector(self, communicator: Any, tag: int = NOTICE_TAG) -> FailureDetector:
        """Return a detector for the time before there is a group."""
        return FailureDetector(
            communicator,
            group="world",
            labels=self._labels(),
            policy=WaitPolicy.for_network(),
            timeout_s=self.timeout_s,
            tag=tag,
        )

    def _labels(self, hosts: tuple[str, ...] = ()) -> RankLabels:
        members = tuple(range(self.size))
        return RankLabels(members=members, hosts=hosts, original_ranks=self.original_ranks)

    def _make_group(
        self, nodes: tuple[int, ...], hosts: tuple[str, ...], settings: Settings
    ) -> Group:
        connections = Connections(
            self._comm,
            name="world",
            labels=self._labels(hosts),
            nodes=nodes,
            policy=self.policy,
            timeout_s=self.timeout_s,
            link_emulator=self._link_emulator,
            still_open=self._still_open,
        )
        # Counting costs nothing beside a message between nodes; on one node calls are direct.
        counts = len(set(nodes)) > 1 or os.environ.get(COUNT, "0") not in ("", "0")
        return Group(
            connections,
            check=settings.check,
            requested=settings.all_reduce,
            traffic=TrafficCounter() if counts else None,
            recorder=self.recorder,
        )

    def _exchange_settings(
        self, link: Link | None, check: bool | None, set_up: SetupCommunicator
    ) -> list[RankSettings]:
        own = read_settings(
            os.environ,
            link=link,
            check=check,
            library=self._mpi.Get_library_version(),
            reported_gpu_aware=query_gpu_support(self._mpi),
        )
        return exchange(own, set_up.allgather)

    def _nodes(self, set_up: SetupCommunicator, detector: FailureDetector) -> tuple[int, ...]:
        """The number of each rank's node, in the order of their first ranks."""
        leaders = set_up.allgather(SetupCommunicator(self.node, detector).bcast(self.rank))
        numbers = {leader: number for number, leader in enumerate(dict.fromkeys(leaders))}
        return tuple(numbers[leader] for leader in leaders)


def check_thread_level(mpi: Any) -> None:
    """Raises: UserError where MPI forbids calls from several threads at the same time, which
    groups make: it would crash, or hang."""
    level = mpi.Query_thread()
    if level < mpi.THREAD_MULTIPLE:
        names = {mpi.THREAD_SINGLE: "single", mpi.THREAD_FUNNELED: "funneled"}
        raise UserError(
            f"MPI was initialised with thread level {names.get(level, 'serialized')}, but Phalanx "
            "needs multiple: do not change mpi4py.rc.thread_level, or call "
            "MPI.Init_thread(MPI.THREAD_MULTIPLE)"
        )


def _check_launched(mpi: Any) -> None:
    launched, size = detect(os.environ), mpi.COMM_WORLD.Get_size()
    if launched is not None and launched.world_size != size:
        library = _library_of(mpi)
        raise LauncherMismatchError(
            f"{launched.launcher} started rank {launched.rank} of {launched.world_size}, but MPI "
            f"({library}) sees rank {mpi.COMM_WORLD.Get_rank()} of {size}: "
            f"{how_to_start(launched, library)}"
        )


def _check_files(mpi: Any) -> None:
    launched, size = detect(os.environ), mpi.COMM_WORLD.Get_size()
    local_size = launched.local_world_size if launched else None
    check_file_limit(size, size - (local_size or 1))


def _library_of(mpi: Any) -> str:
    """Return name and version of the MPI library, its first line."""
    text: str = mpi.Get_library_version()
    return text.splitlines()[0].split(",")[0].strip(" \0")
