"""Bucketed reduction of gradients, during the backward pass or after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from phalanx.comm.collectives.expected_traffic import expected_traffic
from phalanx.comm.collectives.library import is_native
from phalanx.comm.dtypes import DType, dtype_of
from phalanx.comm.group import Group
from phalanx.comm.node_groups import lane_group, node_group
from phalanx.comm.select import Algorithm, choose_all_reduce
from phalanx.comm.traffic import Traffic, sum_traffic
from phalanx.comm.wait import WaitPolicy
from phalanx.comm.world import World
from phalanx.gradients.buckets import (
    LAST_BUCKET_DIVISOR,
    assign_buckets,
    largest_bytes,
)
from phalanx.gradients.comm_thread import CommTasks, CompletedTask, times_of
from phalanx.gradients.compression.backends import GroupBackend
from phalanx.gradients.compression.by_lanes import LanesCompressor
from phalanx.gradients.compression.compressor import Compressor, Uncompressed
from phalanx.gradients.gradient_buckets import (
    Bucket,
    BucketOrder,
    make_buckets,
    visible_memory,
)
from phalanx.gradients.reducer import GradReducer, RankLocalState
from phalanx.records.spans import now_ns

DURING_BACKWARD, AFTER_BACKWARD = WaitPolicy.beside_compute(), WaitPolicy.for_network()
"""Wait policy of the thread while this rank computes, and when this rank waits for the thread."""
Method = Literal["auto", "shared", "library", "naive", "direct", "ring", "tree", "halving"]


class BucketedGradReducer(GradReducer):
    """Reducer of buckets, each of which is summed as soon as it is complete, or all at the end.

    In a block gradients are copied into buckets as they become ready; when it ends every `grad` is
    the sum, in memory of the rank's own. Buckets follow the order in which gradients became ready
    on rank 0 in the first block, which is summed at its end.

    No rank waits for ever: a missing rank is named at the group's timeout, and a rank that fails in
    its block reports that to its peers. The sums are the same, bit for bit, with `overlaps` and
    without.
    """

    def __init__(
        self,
        world: World,
        parameters: Sequence[Tensor],
        compressor: Compressor,
        *,
        method: Method = "auto",
        bucket_bytes: int | None = None,
        overlaps: bool,
        on_thread: bool | None = None,
        divisor: float = 1.0,
        has_hooks: bool = True,
    ) -> None:
        """Collective. bucket_bytes: of the largest bucket; None: as the cache allows, or as the
        network does where it overlaps the backward pass, else one bucket.
        overlaps: a bucket is summed as soon as it is complete; else that happens at the end.
        on_thread: by a thread with a group of its own, while this rank computes; None: where it
            overlaps.
        divisor: of uncompressed sums.
        has_hooks: gradients become ready when autograd has made them; else when `mark_ready` is
            called.

        Raises: ValueError for complex parameters whose gradients are to be compressed.
        """
        super().__init__(parameters)
        if not isinstance(compressor, Uncompressed) and any(p.is_complex() for p in parameters):
            raise ValueError("gradients of complex parameters are not compressed")
        self._overlaps, self._on_thread = overlaps, overlaps if on_thread is None else on_thread
        whole = sum(parameter.nbytes for parameter in parameters)
        self._largest_bytes = bucket_bytes or largest_bytes_of(world, whole, overlaps=overlaps)
        self._last_bytes = self._largest_bytes // LAST_BUCKET_DIVISOR if self._on_thread else None
        self._world, self._method, self._group = world, method, world.group
        if self._on_thread:  # it needs a group of its own, and sleeps while this rank computes
            policy = WaitPolicy.for_network()
            members = range(world.size)
            self._group = world.group.subgroup(members, name="gradients", policy=policy)
        self._subgroups: list[Group] = []
        if compressor.takes_slices and self._group.topology.has_lanes:
            self._subgroups = [node_group(self._group), lane_group(self._group)]
            compressor = LanesCompressor(compressor, *self._subgroups)
        self._compressor = compressor
        requested = None if method == "auto" else method
        self._backend = GroupBackend(self._group, requested, divisor=divisor)
        self.is_open = False
        """True if a block is open: between `begin` and `flush`."""
        self._ready_order: list[Tensor] = []
        self._buckets: list[Bucket] = []  # none before the end of the first block
        self._tasks = CommTasks(self._reduce, on_thread=self._on_thread)
        self._hooks = [
            p.register_post_accumulate_grad_hook(self.mark_ready)
            for p in self._parameters
            if has_hooks
        ]

    @property
    def name(self) -> str:
        return self._algorithm_of(
            *max(map(self._values_of, self.bucket_members()), key=lambda v: v[0])
        )

    def begin(self) -> None:
        self.is_open = True
        if self._on_thread:
            self._set_wait_policy(DURING_BACKWARD)
        if self._buckets:
            self._order.begin()
            for bucket in self._buckets:
                bucket.begin()

    def mark_ready(self, parameter: Tensor) -> None:
        if not self.is_open:
            return
        if not self._buckets:
            self._ready_order.append(parameter)
        elif self._overlaps:
            self._submit(self._order.mark_ready(parameter))

    def flush(self) -> None:
        self.is_open = False
        computed_ns = now_ns()
        if not self._buckets:
            self._follow_ready_order()
        self._submit(self._order.flush())
        if self._on_thread:
            self._set_wait_policy(AFTER_BACKWARD)
        self._record_times(self._tasks.wait(), computed_ns)
        for bucket in self._buckets:
            bucket.copy_out()

    def fail(self, reason: str) -> None:
        self.is_open = False
        for group in (self._group, *self._subgroups):
            group.fail(reason)

    def bucket_members(self) -> list[list[int]]:
        """Return the parameter numbers of each bucket; a guess before the first block has ended."""
        numbers = {parameter: number for number, parameter in enumerate(self._parameters)}
        if self._buckets:
            return [[numbers[p] for p in bucket.parameters] for bucket in self._buckets]
        return self._members_for(
            range(len(self._parameters) - 1, -1, -1)
        )  # backward goes backwards

    def expected_traffic(self) -> Traffic:
        """Return the traffic of all buckets; before the first block, as they most likely will
        be."""
        rank, size, traffic = self._group.rank, self._group.size, list[Traffic]()
        for numbers in self.bucket_members():
            parameters = [self._parameters[number] for number in numbers]
            if not isinstance(self._compressor, Uncompressed):
                shapes = [parameter.shape for parameter in parameters]
                num_bytes = self._compressor.sent_bytes(shapes, rank, size)
                traffic.append(Traffic(num_bytes, num_bytes, 0))
                continue
            count, dtype = self._values_of(numbers)
            algorithm = self._algorithm_of(count, dtype)
            nodes = self._group.topology.nodes
            traffic.append(
                expected_traffic(algorithm, count, dtype.itemsize, rank, size, nodes=nodes)
            )
        return sum_traffic(traffic)

    def rank_local_state(self) -> RankLocalState | None:
        """Return the compressor's state, and the buckets to which it belongs."""
        if not self._compressor.has_state:
            return None
        members = self.bucket_members() if self._buckets else []
        return RankLocalState(self._compressor.state_name, members, self._compressor.state_dict())

    def load_rank_local_state(self, state: RankLocalState) -> bool:
        order = [number for bucket in state.bucket_members for number in bucket]
        fits = (
            state.name == self._compressor.state_name
            and sorted(order) == list(range(len(self._parameters)))
            and self._members_for(order) == state.bucket_members
        )
        if fits:
            self._make_buckets(state.bucket_members)
            self._compressor.load_state_dict(state.tensors)
        return fits

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._tasks.close()
        for group in self._subgroups:
            group.close()
        if self._on_thread:
            self._group.close()
        self._buckets.clear()

    def _set_wait_policy(self, policy: WaitPolicy) -> None:
        for group in (self._group, *self._subgroups):
            group.set_wait_policy(policy)

    def _algorithm_of(self, count: int, dtype: DType) -> Algorithm:
        return choose_algorithm(self._world, count, dtype, self._method)

    def _values_of(self, numbers: Sequence[int]) -> tuple[int, DType]:
        """Return the count and the type of a bucket's values."""
        count = sum(self._parameters[number].numel() for number in numbers)
        return count, dtype_of(self._parameters[numbers[0]].dtype)

    def _members_for(self, order: Sequence[int]) -> list[list[int]]:
        return assign_buckets(
            [p.nbytes for p in self._parameters],
            [str(p.dtype) for p in self._parameters],
            order,
            self._largest_bytes,
            self._last_bytes,
        )

    def _follow_ready_order(self) -> None:
        """Make the buckets in the order in which rank 0's gradients became ready. Not counted as
        traffic: it happens once."""
        numbers = {parameter: number for number, parameter in enumerate(self._parameters)}
        traffic, self._group.traffic = self._group.traffic, None
        ready_order = self._group.share([numbers[p] for p in dict.fromkeys(self._ready_order)])
        self._group.traffic = traffic
        unused = sorted(set(numbers.values()).difference(ready_order))
        self._make_buckets(self._members_for([*ready_order, *unused]))

    def _make_buckets(self, numbers_of: Sequence[Sequence[int]]) -> None:
        members = [[self._parameters[number] for number in numbers] for numbers in numbers_of]
        self._buckets = make_buckets(members, visible_memory(self._group))
        self._order = BucketOrder(members)
        for bucket in self._buckets:
            self._compressor.prepare(bucket.number, bucket.shapes)
        self._ready_order.clear()
        if not self._overlaps:
            for hook in self._hooks:
                hook.remove()

    def _submit(self, numbers: range) -> None:
        for bucket in self._buckets[numbers.start : numbers.stop]:
            bucket.copy_in()
            self._tasks.submit(bucket)

    def _reduce(self, bucket: Bucket) -> None:
        self._compressor.reduce(bucket.number, bucket.values, self._backend)

    def _record_times(self, completed: Sequence[CompletedTask[Bucket]], computed_ns: int) -> None:
        self.times = times_of(completed, computed_ns)
        if (spans := self._group.spans) is not None:
            for bucket, began_ns, ended_ns in completed:
                detail: dict[str, str | int | float] = {"bytes": bucket.values.nbytes}
                name = f"bucket {bucket.number}"
                spans.add(name, "network", began_ns, ended_ns, detail)


def choose_algorithm(world: World, count: int, dtype: DType, method: Method) -> Algorithm:
    """Return the algorithm that sums an uncompressed bucket of `count` values."""
    return choose_all_reduce(
        count * dtype.itemsize,
        dtype,
        topology=world.group.topology,
        requested=world.settings.all_reduce if method == "auto" else method,
        is_native=is_native(dtype),
    ).algorithm


def largest_bytes_of(world: World, whole: int, *, overlaps: bool) -> int:
    """Return the bytes of the largest bucket of gradients of `whole` bytes."""
    return largest_bytes(
        world.size,
        whole,
        on_one_node=world.on_one_node,
        cache_bytes=world.settings.cache_bytes,
        link=world.link,
        overlaps=overlaps,
    )
