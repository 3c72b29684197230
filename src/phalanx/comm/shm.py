"""Collectives among the ranks of one node, through memory that they share."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from phalanx.comm import kernels
from phalanx.comm.buffer import Buffer
from phalanx.comm.collective import Collective
from phalanx.comm.compiled import kernel_names
from phalanx.comm.dtypes import DTYPES, ReduceOp
from phalanx.comm.errors import (
    MismatchError,
    PeerDepartedError,
    PeerDiedError,
    PeerFailedError,
    WaitTimeoutError,
)
from phalanx.comm.faults import is_fault_tolerant
from phalanx.comm.memory import SharedMemory, allocate_shared, warn_no_shared_memory
from phalanx.comm.progress import poke_mpi
from phalanx.comm.wait import WaitPolicy
from phalanx.records.last_collectives import LastCall

_KINDS, _STATUSES = kernel_names("KINDS"), kernel_names("STATUSES")
_DEPARTED = 2
_BY_CODE = {dtype.code: dtype for dtype in DTYPES.values()}


@dataclass(frozen=True, slots=True)
class PlainTensors:
    """Tensors of PyTorch that are reduced where they lie, if they are on the CPU and contiguous."""

    layout: Any
    """`torch.strided`."""
    codes: Mapping[Any, int]
    """Numbers of the elements' types in the C kernels, by PyTorch's dtypes."""


@dataclass(frozen=True)
class _PeerStatus:
    """Status that a rank has published in shared memory."""

    phase: int
    fingerprint: int
    count: int
    failed: int
    """0, 1, or 2 where it has departed."""
    reason: str

    @property
    def number(self) -> int:
        """Sequence number of the call, modulo 2¹⁶."""
        return self.fingerprint >> 48


class ShmGroup:
    """A group of ranks on one node that share memory, as seen from one of them.

    The same calls as those of `Group`, which documents them. Buffers from `allocate` are reduced in
    place; all others go through shared memory in chunks that stay in cache. Every call is compared
    with those of the peers before any data moves.
    """

    def __init__(
        self, memory: SharedMemory, module: Any, communicator: Any, policy: WaitPolicy, name: str
    ) -> None:
        self.rank: int = communicator.Get_rank()
        self.size: int = communicator.Get_size()
        self.name = name
        self.timeout_s = 0.0
        self._moves_messages = False
        self.group_ranks: Sequence[int] = range(self.size)
        self._label: Callable[[int], str] = str
        self._memory, self._module = memory, module
        self._handle = module.join(
            memory.address, self.rank, self.size, policy.spins, policy.yields
        )
        module.keep_memory(self._handle, memory)  # a thread may still wait in it at the end
        communicator.Barrier()
        module.all_joined(self._handle)
        communicator.Barrier()
        self._all_reduce, self._barrier = module.all_reduce, module.barrier
        self._all_reduce_tensor = module.all_reduce_tensor

    @classmethod
    def join(
        cls,
        communicator: Any,
        *,
        policy: WaitPolicy,
        name: str,
        timeout_s: float,
        group_ranks: Sequence[int] | None = None,
        label: Callable[[int], str] = str,
    ) -> ShmGroup | None:
        """Join a group of all ranks of `communicator`. Collective.

        None, on all of its ranks, where they cannot share memory or have no kernels.
        group_ranks: the numbers by which errors name the ranks; label: makes a name of a number.
        """
        module = kernels.compiled()
        size = communicator.Get_size()
        usable = communicator.allgather(module is not None and 1 < size <= module.MAX_RANKS)
        if not all(usable) or module is None:
            obstacle = kernels.obstacle_to_sharing(usable)
            if obstacle is not None and communicator.Get_rank() == 0:
                warn_no_shared_memory(obstacle)
            return None
        memory = allocate_shared(communicator, module.shm_bytes(size))
        if memory is None:
            return None
        joined = cls(memory, module, communicator, policy, name)
        joined.timeout_s = timeout_s
        joined.group_ranks, joined._label = group_ranks or range(size), label
        if is_fault_tolerant():  # a revocation travels as a message does
            joined.keep_messages_moving()
        return joined

    def allocate(self, num_elements: int, dtype: DTypeLike) -> NDArray[Any]:
        """Return (num_elements,) zeros in memory that the peers can map.

        Collectives of this group do not copy it. It is freed with the last array that uses it. Not
        collective.

        Raises: OSError when the system has no more memory.
        """
        num_bytes = max(1, num_elements * np.dtype(dtype).itemsize)
        memory = SharedMemory.create(num_bytes)
        assert memory.descriptor is not None, "it is new"
        array = memory.array()
        self.export(memory.descriptor, memory.address, num_bytes, array, keep=memory)
        return array[: num_elements * np.dtype(dtype).itemsize].view(dtype)

    def export(
        self, descriptor: int, address: int, num_bytes: int, owner: object, keep: object = None
    ) -> bool:
        """Let the peers map the memory of this process at `address`, which is that of file
        `descriptor`, until `owner` is freed; False when too many segments are exported already."""
        number = self._module.export_segment(self._handle, descriptor, num_bytes, address)
        if number < 0:
            return False
        weakref.finalize(owner, _unexport, self._module, self._handle, number, keep)
        return True

    def barrier(self, *, timeout_s: float | None = None) -> None:
        status = self._barrier(self._handle, self.timeout_s if timeout_s is None else timeout_s)
        if status:
            raise self._error(status)

    def all_reduce(
        self,
        buffer: Buffer,
        op: ReduceOp = ReduceOp.SUM,
        *,
        divisor: float = 1.0,
        timeout_s: float | None = None,
    ) -> None:
        status = self._all_reduce(
            self._handle,
            buffer.address,
            buffer.count,
            buffer.dtype.code,
            op,
            divisor,
            self.timeout_s if timeout_s is None else timeout_s,
        )
        if status:
            raise self._error(status)

    def all_reduce_tensor(
        self,
        tensor: Any,
        plain: PlainTensors,
        op: ReduceOp,
        divisor: float,
        timeout_s: float | None,
    ) -> bool:
        """Reduce a tensor of PyTorch; False, and nothing was done, if it is not plain."""
        status = self._all_reduce_tensor(
            self._handle,
            tensor,
            plain.layout,
            plain.codes,
            op,
            divisor,
            self.timeout_s if timeout_s is None else timeout_s,
        )
        if status:
            raise self._error(status)
        return status is not None

    def run(self, collective: Collective, timeout_s: float | None = None) -> None:
        """Execute any collective. Raises: the error that ended it."""
        kind, inputs, outputs, op, divisor, root, *_ = collective
        if kind == "barrier":
            self.barrier(timeout_s=timeout_s)
            return
        dtype = collective.dtype
        nothing = Buffer(0, 0, dtype)
        if kind == "gather":
            inputs = [inputs[0] if rank == root else nothing for rank in range(self.size)]
            outputs = outputs if self.rank == root else [nothing] * self.size
        elif kind == "scatter":
            outputs = [outputs[0] if rank == root else nothing for rank in range(self.size)]
            inputs = inputs if self.rank == root else [nothing] * self.size
        status = self._module.run(
            self._handle,
            _KINDS.index(kind),
            *_memory_of(outputs, in_elements=op is not None),
            *_memory_of(inputs, in_elements=op is not None),
            dtype.code,
            op or 0,
            divisor,
            root or 0,
            self.timeout_s if timeout_s is None else timeout_s,
        )
        self.check(status)

    def keep_messages_moving(self) -> None:
        """Let MPI progress messages during long waits of this process, from now on: it does so only
        while it is called, and a rank may wait here for one that waits for a message."""
        if not self._moves_messages:
            self._moves_messages = True
            self._module.set_progress_hook(poke_mpi)

    def is_dead(self, rank: int) -> bool:
        """Return whether the process of `rank`, which had joined, has ended."""
        return bool(self._module.is_dead(self._handle, rank))

    def call_state(self) -> tuple[int, bool]:
        """Return the number of calls that this rank has begun, and whether it is in the last."""
        begun, ended, _ = self._module.logged_calls(self._handle)
        return begun, begun != ended

    # Doorbells. MPI makes progress only while it is called, so a rank that waits for a message must
    # poll; with many ranks per core these polls take the time of the ranks that are waited for. So
    # it sleeps, and polls when a peer has rung: the peer has sent a message, or has received one of
    # this rank. A missed ring does no harm: the sleep has a timeout.

    def ring(self, rank: int) -> None:
        """Wake `rank` if it sleeps; else it will poll once more before it sleeps."""
        self._module.ring(self._handle, rank)

    def num_rings(self) -> int:
        """Return how often this rank's bell was rung."""
        number: int = self._module.num_rings(self._handle)
        return number

    def sleep(self, num_rings: int, nap_s: float) -> None:
        """Sleep until a peer rings, at most `nap_s`; return at once if `num_rings` is outdated."""
        self._module.sleep_until_rung(self._handle, num_rings, nap_s)

    @property
    def handle(self) -> Any:
        """The C handle of this group, for kernels that are called from elsewhere; pass their
        status to `check`."""
        return self._handle

    def last_calls(self) -> list[LastCall]:
        """Return the last calls of this rank that the kernels have logged, numbered from 1."""
        begun, ended, calls = self._module.logged_calls(self._handle)
        return [
            LastCall(
                number=number,
                name=_KINDS[fingerprint & 0xFF],
                call=describe_call(fingerprint, count),
                way="shared memory",
                began_ns=began_ns,
                is_done=number < begun or begun == ended,
            )
            for number, (fingerprint, count, began_ns) in enumerate(calls, begun - len(calls) + 1)
        ]

    def check(self, status: int) -> None:
        """Raises: the error that ended the call, unless its status is success."""
        if status:
            raise self._error(status)

    def check_peers(self) -> None:
        """Raises: PeerFailedError when a peer has reported a failure."""
        if self._ranks(lambda peer: peer.failed):
            raise self._error(_STATUSES.index("PEER_FAILED"))

    def fail(self, reason: str) -> None:
        self._module.fail(self._handle, reason, False)

    def depart(self, reason: str) -> None:
        """Report to the peers that this rank makes no more calls in this group: a wait for one ends
        with a PeerDepartedError, all others continue. Not collective."""
        self._module.fail(self._handle, reason, True)

    def _error(self, status: int) -> Exception:
        ended_by = _STATUSES[status]
        if ended_by == "MISMATCH":
            return MismatchError(self._calls())
        if ended_by == "PEER_FAILED":
            failed = self._ranks(lambda peer: peer.failed not in (0, _DEPARTED))
            if not failed and (departed := self._ranks(lambda peer: peer.failed)):
                reason = self._peer(departed[0]).reason
                return PeerDepartedError(f"{self._rank_labels(departed[:1])} {reason}")
            rank = (failed or [self.rank])[0]
            return PeerFailedError(f"{self._rank_labels([rank])} failed: {self._peer(rank).reason}")
        gone = self._module.progress(self._handle)[2]
        if ended_by == "NO_MEMORY":
            return MemoryError(f"the memory of {self._rank_labels([gone])} could not be read")
        if ended_by == "PEER_DIED":
            return PeerDiedError(f"{self._rank_labels([gone])} failed: its process is gone")
        _, awaited, _ = self._module.progress(self._handle)
        missing = self._ranks(lambda peer: peer.phase < awaited)
        return WaitTimeoutError(self._rank_labels(missing))

    def _rank_labels(self, ranks: Sequence[int]) -> str:
        return f"rank {', '.join(self._label(self.group_ranks[rank]) for rank in ranks)}"

    def _ranks(self, chosen: Callable[[_PeerStatus], bool | int]) -> list[int]:
        return [r for r in range(self.size) if r != self.rank and chosen(self._peer(r))]

    def _peer(self, rank: int) -> _PeerStatus:
        return _PeerStatus(*self._module.peer_status(self._handle, rank))

    def _calls(self) -> str:
        """Describe which ranks called what, ranks with the same call in one entry."""
        callers: dict[str, list[int]] = {}
        published, _, _ = self._module.progress(self._handle)
        peers = {rank: self._peer(rank) for rank in range(self.size)}
        # A rank that has not arrived yet has published an earlier call.
        peers = {rank: peer for rank, peer in peers.items() if peer.phase >= published}
        numbers = {peer.number for peer in peers.values()}
        for rank, peer in peers.items():
            text = describe_call(peer.fingerprint, peer.count)
            if len(numbers) > 1:
                text = f"{text} as number {peer.number} in shared memory"
            callers.setdefault(text, []).append(rank)
        if len(callers) == 1:
            return f"ranks send and expect different sizes in {next(iter(callers))}"
        return ", ".join(
            f"{self._rank_labels(ranks)} called {call}" for call, ranks in callers.items()
        )


def _memory_of(buffers: Sequence[Buffer], *, in_elements: bool) -> tuple[list[int], list[int]]:
    """Return the addresses and the sizes of buffers, for the kernels."""
    sizes = [buffer.count if in_elements else buffer.num_bytes for buffer in buffers]
    return [buffer.address for buffer in buffers], sizes


def describe_call(fingerprint: int, count: int) -> str:
    """The call that a rank published, in words."""
    kind, op, code = fingerprint & 0xFF, fingerprint >> 8 & 0xFF, fingerprint >> 16 & 0xFF
    divisor, root = fingerprint >> 24 & 0xFF, fingerprint >> 32 & 0xFFFF
    name = _KINDS[kind]
    dtype = _BY_CODE[code].name if code in _BY_CODE else "bytes"
    words = [] if name == "barrier" else [dtype]
    if name in ("all_reduce", "reduce"):
        words.append(f"{count} elements")
    if name == "broadcast":
        words.append(f"{count // _BY_CODE[code].itemsize if code in _BY_CODE else count} elements")
    if name in ("all_gather", "reduce_scatter", "all_reduce of parts", "fused_step"):
        words.append(f"layout {count & 0xFFFF:04x}")
    if name in ("all_reduce", "reduce", "reduce_scatter"):
        words.append(ReduceOp(op).name)
    if divisor:
        words.append(f"divided by {divisor + 1}" if divisor < 128 else "divided")
    if name in ("reduce", "broadcast", "gather", "scatter"):
        words.append(f"root {root}")
    return f"{name}({', '.join(words)})"


def _unexport(module: Any, handle: Any, number: int, keep: object) -> None:
    module.unexport_segment(handle, number)
    del keep
