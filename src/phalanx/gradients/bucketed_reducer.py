"""Bucketed reduction of gradients, during the backward pass or after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from phalanx.comm.collectives.expected_traffic import expected_traffic_if_known
from phalanx.comm.dtypes import DType
from phalanx.comm.group import Group
from phalanx.comm.select import Algorithm
from phalanx.comm.traffic import Traffic, sum_traffic
from phalanx.comm.wait import WaitPolicy
from phalanx.gradients.buckets import plan_buckets
from phalanx.gradients.comm_thread import CommThread, CompletedTask, SameThread, times_of
from phalanx.gradients.compression.compressor import Compressor, ReduceBackend, Uncompressed
from phalanx.gradients.gradient_buckets import Bucket, GradientBuckets, visible_memory
from phalanx.gradients.reducer import GradReducer, RankLocalState
from phalanx.records.spans import now_ns
from phalanx.torch_backend.tensors import dtype_of

DURING_BACKWARD, AFTER_BACKWARD = WaitPolicy.beside_compute(), WaitPolicy.for_network()
"""Wait policy of the thread while this rank computes, and when this rank waits for the thread."""


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
        parameters: Sequence[Tensor],
        group: Group,
        compressor: Compressor,
        backend: ReduceBackend,
        *,
        subgroups: Sequence[Group] = (),
        algorithm_of: Callable[[int, DType], Algorithm],
        largest_bytes: int,
        last_bytes: int | None,
        overlaps: bool,
        on_thread: bool,
        has_hooks: bool = True,
    ) -> None:
        """group: used by nobody else while a block is open, and closed by this where there is a
        thread; backend: the same, for the compressor. subgroups: of the compressor, closed by this.
        algorithm_of: chooses that of an uncompressed bucket of so many values.
        largest_bytes, last_bytes: of buckets, as `plan_buckets` has it.
        overlaps: a bucket is summed as soon as it is complete; else that happens at the end.
        on_thread: by a thread, while this rank computes.
        has_hooks: gradients become ready when autograd has made them; else when `mark_ready` is
            called.
        """
        super().__init__(parameters)
        self._group, self._compressor, self._backend = group, compressor, backend
        self._subgroups = subgroups
        self._algorithm_of = algorithm_of
        self._largest_bytes, self._last_bytes = largest_bytes, last_bytes
        self._overlaps, self._on_thread = overlaps, on_thread
        self.is_open = False
        """Whether a block is open: between `begin` and `flush`."""
        self._ready_order: list[Tensor] = []
        self._buckets: GradientBuckets | None = None
        self._tasks = (CommThread if on_thread else SameThread)(self._reduce)
        self._hooks = [
            p.register_post_accumulate_grad_hook(self.mark_ready)
            for p in self._parameters
            if has_hooks
        ]

    @property
    def name(self) -> str:
        return self._algorithm_of(*max(map(self._values_of, self.plan()), key=lambda v: v[0]))

    def begin(self) -> None:
        self.is_open = True
        if self._on_thread:
            self._set_wait_policy(DURING_BACKWARD)
        if self._buckets is not None:
            self._buckets.begin()

    def mark_ready(self, parameter: Tensor) -> None:
        if not self.is_open:
            return
        if self._buckets is None:
            self._ready_order.append(parameter)
        elif self._overlaps:
            for bucket in self._buckets.mark_param_ready(parameter):
                self._tasks.submit(bucket)

    def flush(self) -> None:
        self.is_open = False
        computed_ns = now_ns()
        if self._buckets is None:
            self._follow_ready_order()
        assert self._buckets is not None, "made above"
        for bucket in self._buckets.flush():
            self._tasks.submit(bucket)
        if self._on_thread:
            self._set_wait_policy(AFTER_BACKWARD)
        self._record_times(self._tasks.wait(), computed_ns)
        for bucket in self._buckets.buckets:
            bucket.copy_out()

    def fail(self, reason: str) -> None:
        self.is_open = False
        for group in (self._group, *self._subgroups):
            group.fail(reason)

    def plan(self) -> list[list[int]]:
        """Return the parameter numbers of each bucket; a guess before the first block has ended."""
        numbers = {parameter: number for number, parameter in enumerate(self._parameters)}
        if self._buckets is not None:
            return [[numbers[p] for p in bucket.parameters] for bucket in self._buckets.buckets]
        return self._plan_for(range(len(self._parameters) - 1, -1, -1))  # backward goes backwards

    def expected_traffic(self) -> Traffic | None:
        """Return the traffic of all buckets; before the first block, as they most likely will
        be."""
        rank, size, traffic = self._group.rank, self._group.size, list[Traffic]()
        for numbers in self.plan():
            parameters = [self._parameters[number] for number in numbers]
            if not isinstance(self._compressor, Uncompressed):
                shapes = [parameter.shape for parameter in parameters]
                num_bytes = self._compressor.sent_bytes(shapes, rank, size)
                traffic.append(Traffic(num_bytes, num_bytes, 0))
                continue
            count, dtype = self._values_of(numbers)
            algorithm = self._algorithm_of(count, dtype)
            nodes = self._group.topology.num_nodes
            known = expected_traffic_if_known(
                algorithm, count, dtype.itemsize, rank, size, num_nodes=nodes
            )
            if known is None:
                return None
            traffic.append(known)
        return sum_traffic(traffic)

    def rank_local_state(self) -> RankLocalState | None:
        """Return the compressor's state, and the buckets to which it belongs."""
        if not self._compressor.has_state:
            return None
        plan = self.plan() if self._buckets is not None else []
        return RankLocalState(self._compressor.state_name, plan, self._compressor.state_dict())

    def load_rank_local_state(self, state: RankLocalState) -> bool:
        order = [number for bucket in state.plan for number in bucket]
        fits = (
            state.name == self._compressor.state_name
            and sorted(order) == list(range(len(self._parameters)))
            and self._plan_for(order) == state.plan
        )
        if fits:
            self._make_buckets(state.plan)
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
        self._buckets = None

    def _set_wait_policy(self, policy: WaitPolicy) -> None:
        for group in (self._group, *self._subgroups):
            group.set_wait_policy(policy)

    def _values_of(self, numbers: Sequence[int]) -> tuple[int, DType]:
        """Return the count and the type of a bucket's values."""
        count = sum(self._parameters[number].numel() for number in numbers)
        return count, dtype_of(self._parameters[numbers[0]].dtype)

    def _plan_for(self, order: Sequence[int]) -> list[list[int]]:
        return plan_buckets(
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
        self._make_buckets(self._plan_for([*ready_order, *unused]))

    def _make_buckets(self, plan: Sequence[Sequence[int]]) -> None:
        self._buckets = GradientBuckets(self._parameters, plan, visible_memory(self._group))
        for bucket in self._buckets.buckets:
            self._compressor.prepare(bucket.number, bucket.shapes)
        self._ready_order.clear()
        if not self._overlaps:
            for hook in self._hooks:
                hook.remove()

    def _reduce(self, bucket: Bucket) -> None:
        self._compressor.reduce(bucket.number, bucket.values, self._backend)

    def _record_times(self, completed: Sequence[CompletedTask[Bucket]], computed_ns: int) -> None:
        self.times = times_of(completed, computed_ns)
        if (spans := self._group.spans) is not None:
            for bucket, began_ns, ended_ns in completed:
                detail: dict[str, str | int | float] = {"bytes": bucket.values.nbytes}
                name = f"bucket {bucket.number}"
                spans.add(name, "network", began_ns, ended_ns, detail)
