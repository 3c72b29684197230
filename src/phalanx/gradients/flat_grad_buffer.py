"""Flat buffer of gradients in shared memory, reduced among the ranks of a node.

The work is done by `csrc/grad_buffer.c` and `csrc/fused.c`; here are the memory and the errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from phalanx.comm import kernels
from phalanx.comm.buffer import Buffer
from phalanx.comm.dtypes import DTYPES, ReduceOp
from phalanx.comm.errors import (
    MismatchError,
    PeerDepartedError,
    PeerDiedError,
    PeerFailedError,
    WaitTimeoutError,
    encodable,
)
from phalanx.comm.failure_detector import FailureDetector
from phalanx.comm.flight_recorder import NETWORK, collective_detail
from phalanx.comm.layout import CACHE_LINE_BYTES, aligned_starts_of, elements_in
from phalanx.comm.memory import SharedMemory, allocate_shared
from phalanx.comm.rank_labels import RankLabels
from phalanx.comm.set_up import SetupCommunicator
from phalanx.comm.shm import ShmGroup
from phalanx.comm.traffic import Traffic, sharded_all_reduce_traffic
from phalanx.comm.world import World
from phalanx.records.last_collectives import GroupCalls
from phalanx.records.spans import SpanRecorder, now_ns

NAME = "parts"
"""Name of the group in errors and traces."""


class FlatGradBuffer:
    """Gradients of one rank, as parts of a flat vector that the ranks of its node reduce in shared
    memory.

    Each round is one collective call. Nothing is left behind, however the ranks end.
    Memory: windows of the vector's length, one for each rank or more, of which its local share is
    never touched, and the shared vectors.
    """

    def __init__(
        self,
        world: World,
        shm: ShmGroup | None,
        memory: SharedMemory,
        module: Any,
        sizes: Sequence[int],
        starts: Sequence[int],
        dtype: np.dtype[Any],
        *,
        num_windows: int,
        guarded: bool,
    ) -> None:
        *self.starts, num_elements = starts
        """Elements of the vector at which the parts begin."""
        self._world, self._shm, self._module = world, shm, module
        self._members = node_members(world)
        self._code = DTYPES[dtype.name].code
        self.spans: SpanRecorder | None = None
        """Recorder to which every round adds its span, in a traced run."""
        self._num_rounds = 0
        self._num_bytes = sum(sizes) * dtype.itemsize
        world.recorder.register(self)
        if shm is not None:
            world.step_groups.add(shm)
        stride = stride_bytes(num_elements, dtype)
        rows = memory.array().view(dtype).reshape(-1, stride // dtype.itemsize)
        self.vectors: list[NDArray[Any]] = [row[:num_elements] for row in rows[num_windows:]]
        """(num_elements,) each, zeros at first: shared, any rank may write."""
        self._addresses = [vector.ctypes.data for vector in self.vectors]
        self.carried = np.zeros(module.NUM_CARRIED)
        """(2,) float64: numbers of this rank, which each round makes the sums over the ranks of the
        node, in their order. They cost no phase and are no traffic that is counted."""
        self._buffer = module.make_grad_buffer(
            shm.handle if shm else None,
            world.local_rank,
            world.local_size,
            memory.address,
            num_windows,
            stride,
            num_elements,
            self.starts,
            sizes,
            self._code,
            guarded,
            self.carried.ctypes.data,
        )
        self.local_share = range(*module.local_share(self._buffer))
        """Elements of the vector that this rank reduces; those of its peers begin and end at the
        same places on nodes of as many ranks."""
        self._share_bytes = dtype.itemsize * elements_in(self.local_share, self.starts, sizes)
        self.traffic = sharded_all_reduce_traffic(
            self._num_bytes, self._share_bytes, world.local_size
        )
        """Traffic of this rank in one round of one term per rank; `world.traffic`, where there is
        one, counts what a round moves."""

    @classmethod
    def join(
        cls,
        world: World,
        sizes: Sequence[int],
        dtype: DTypeLike,
        *,
        num_vectors: int,
        alignment: int = 1,
        num_windows: int | None = None,
        guarded: bool = False,
    ) -> FlatGradBuffer | None:
        """Make a buffer for parts of `sizes` elements, one after the other in a vector, each at a
        multiple of `alignment`, and `num_vectors` vectors that the ranks of this node share.
        num_windows: the most terms of `sum_in_order`; None: one of each rank. guarded: parts are
        checked as they are copied, and not used if any value is not finite. None, on all ranks of
        this node, where they cannot share memory or have no kernels. Collective.

        Raises: WaitTimeoutError naming the ranks that did not come.
        """
        module = kernels.compiled()
        members, detector = node_members(world), node_detector(world, NAME)
        set_up = SetupCommunicator(world.node, detector)
        if not all(set_up.allgather(module is not None)):
            return None
        shm = None
        if len(members) > 1:
            shm = ShmGroup.join(
                set_up,
                policy=world.policy,
                name=NAME,
                timeout_s=world.timeout_s,
                group_ranks=members,
                label=world.group.labels.short,
            )
            if shm is None:
                return None
            if not world.on_one_node:  # peers on other nodes may wait for messages of this rank
                shm.keep_messages_moving()
        dtype = np.dtype(dtype)
        num_windows = max(num_windows or 0, world.local_size)
        starts, num_rows = aligned_starts_of(sizes, alignment), num_windows + num_vectors
        memory = allocate_shared(set_up, max(1, num_rows * stride_bytes(starts[-1], dtype)))
        detector.close()
        if memory is None:
            return None
        return cls(
            world,
            shm,
            memory,
            module,
            sizes,
            starts,
            dtype,
            num_windows=num_windows,
            guarded=guarded,
        )

    def all_reduce(self, addresses: Sequence[int], *, in_place: bool = False) -> bool:
        """Make the first of `vectors` the sum over the ranks, in their order.

        addresses: of all parts, each contiguous. in_place: the parts become the same.
        Cost:    two phases; for p ranks of n bytes each copies n(p-1)/p, reads n and writes n/p;
                 in place it reads n(p-1)/p more, and writes n, where it has just read.
        Returns: whether all sums are finite, the same on every rank.
        Raises:  ValueError for another number of parts; WaitTimeoutError naming the ranks that did
                 not come; MismatchError when their parts are others.
        """
        began_ns = now_ns()
        status = self._module.grad_buffer_all_reduce(
            self._buffer,
            addresses,
            self._addresses[0],
            in_place,
            ReduceOp.SUM,
            self._world.timeout_s,
        )
        return self._end_sums(status, self.traffic, began_ns)

    def sum_in_order(
        self,
        addresses: Sequence[int],
        dtypes: Sequence[int],
        *,
        first: int,
        num_own: int,
        num_terms: int,
        expression: Sequence[int],
    ) -> bool:
        """Make the first of `vectors`, which are of bytes, the sum of any number of terms of each
        rank, in a given order; half types are rounded after each addition.

        addresses:  of all parts of this rank's terms, term by term, each contiguous.
        dtypes:     codes of the parts' types; each part begins on a cache line.
        first:      number of its first term; the others follow. num_own: of its terms.
        expression: postfix, the same on every rank: numbers of terms, and num_terms to add the two
                    values before.
        Cost:       as `all_reduce`, copies once for each of this rank's terms.
        Returns, Raises: as `all_reduce`; ValueError also for more terms than windows.
        """
        began_ns = now_ns()
        status = self._module.grad_buffer_sum_in_order(
            self._buffer,
            addresses,
            dtypes,
            self._addresses[0],
            first,
            num_own,
            num_terms,
            expression,
            self._world.timeout_s,
        )
        traffic = sharded_all_reduce_traffic(
            self._num_bytes,
            self._share_bytes,
            self._world.local_size,
            num_own=num_own,
            num_terms=num_terms,
        )
        return self._end_sums(status, traffic, began_ns)

    def fused_step(
        self,
        addresses: Sequence[int],
        rule: int,
        coefficients: Sequence[float],
    ) -> float | None:
        """Make an optimizer step on the sums of the gradients over the ranks.

        The parameters are the first of `vectors`, their states the others (`optimizer_update.py`).

        Cost:    two phases; for p ranks of n bytes each copies n(p-1)/p, reads n (n/p of it twice
                 where parts are guarded), and reads and writes its share of parameters and states.
        Returns: seconds that this rank took for its share; None, on all ranks, where parts are
                 guarded and a value of one of them is not finite: nothing has changed.
        Raises:  as `all_reduce`.
        """
        began_ns = now_ns()
        status, used_s = self._module.fused_step(
            self._buffer,
            addresses,
            rule,
            coefficients,
            self._addresses[0],
            self._addresses[1:],
            self._code,
            self._world.timeout_s,
        )
        is_finite = status != self._module.NOT_FINITE
        if status and is_finite:
            self._check(status, "the fused step")
        if is_finite:
            self._count("fused_step", self.traffic)
        self._end_round("fused_step", began_ns)
        return float(used_s) if is_finite else None

    def is_true_for_all(self, is_true: bool, name: str) -> bool:
        """Return whether `is_true` on every rank of this node. name: of the call in errors.
        Raises: as `all_reduce`."""
        if self._shm is None:
            return is_true
        num_against = np.array([not is_true], np.int32)
        with self._timed(name):
            self._shm.all_reduce(Buffer.of(num_against))
        return not num_against[0]

    def barrier(self, name: str) -> None:
        """Wait for the ranks of this node. name: of the call in errors. Raises: as `all_reduce`."""
        if self._shm is not None:
            with self._timed(name):
                self._shm.barrier()

    def fail(self, reason: str) -> None:
        """Report to the ranks of this node that this one has failed."""
        if self._shm is not None:
            self._shm.fail(encodable(reason))

    def last_calls(self) -> GroupCalls:
        """Return the last rounds of this rank."""
        calls = [] if self._shm is None else self._shm.last_calls()
        return GroupCalls(group=NAME, members=list(self._members), calls=calls)

    def call_state(self) -> tuple[int, bool]:
        """Return as `Group.call_state`."""
        shm = getattr(self, "_shm", None)  # none after the end
        state: tuple[int, bool] = (0, False) if shm is None else shm.call_state()
        return state

    def close(self) -> None:
        """Arrays of `vectors` that are still in use keep the memory."""
        self.vectors.clear()
        del self._buffer, self._shm

    def _end_sums(self, status: int, traffic: Traffic, began_ns: int) -> bool:
        is_finite: bool = status != self._module.NOT_FINITE
        if status and is_finite:
            self._check(status, "the all-reduce of gradients")
        self._count("all_reduce", traffic)
        self._end_round("all_reduce of parts", began_ns)
        return is_finite

    def _count(self, name: str, traffic: Traffic) -> None:
        if self._world.traffic is not None:
            self._world.traffic.collective(name, self._num_bytes, traffic)

    def _end_round(self, name: str, began_ns: int) -> None:
        self._num_rounds += 1
        self._count_time(began_ns)
        if self.spans is not None and self._shm is not None:
            number = self._num_rounds
            detail = collective_detail(NAME, self._members, number, self._num_bytes)
            self.spans.add(f"{name} {number}", NETWORK, began_ns, now_ns(), detail)

    def _check(self, status: int, name: str) -> None:
        assert self._shm is not None, "one rank waits for nobody"
        with self._errors_of(name):
            self._shm.check(status)

    def _count_time(self, began_ns: int) -> None:
        if (traffic := self._world.traffic) is not None:
            traffic.add_time((now_ns() - began_ns) / 1e9, is_network=False)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began_ns = now_ns()
        with self._errors_of(name):
            yield
        self._count_time(began_ns)

    @contextmanager
    def _errors_of(self, name: str) -> Iterator[None]:
        """Let errors of shared memory say that they were met in call `name`."""
        try:
            yield
        except WaitTimeoutError as error:
            raise WaitTimeoutError(
                f"rank {self._world.rank} waited {self._world.timeout_s:g} s in {name} for {error}"
                f"{self._written(str(error))}"
            ) from None
        except PeerDepartedError:  # its text says all
            raise
        except (PeerFailedError, MismatchError) as error:
            where = f", in {name}" if isinstance(error, PeerDiedError) else ""
            error.args = (f"{error}{where}{self._written(str(error))}",)
            raise

    def _written(self, reason: str) -> str:
        path = self._world.recorder.write(reason)
        return f" (its last collectives: {path})" if path else ""


def node_members(world: World) -> tuple[int, ...]:
    """Return the ranks on this node, by their numbers in the world."""
    nodes = world.group.nodes
    return tuple(rank for rank, node in enumerate(nodes) if node == nodes[world.rank])


def node_detector(world: World, group: str) -> FailureDetector:
    """Return a detector of failures of the ranks on this node, as of a group of that name."""
    return FailureDetector(
        world.node,
        group=group,
        labels=RankLabels(members=node_members(world)),
        policy=world.policy,
        timeout_s=world.timeout_s,
    )


def stride_bytes(num_elements: int, dtype: np.dtype[Any]) -> int:
    """Return the distance between vectors of `num_elements`: full cache lines."""
    return -(-num_elements * dtype.itemsize // CACHE_LINE_BYTES) * CACHE_LINE_BYTES
