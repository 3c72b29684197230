"""Bucketed reduction of gradients, during the backward pass or after it."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple, Self

from torch import Tensor, nn

from phalanx.comm.group import Group
from phalanx.comm.wait import WaitPolicy
from phalanx.gradients.buckets import plan_buckets
from phalanx.gradients.comm_thread import CommThread, CompletedTask
from phalanx.gradients.compression.compressor import Compressor, ReduceBackend
from phalanx.gradients.gradient_buckets import Bucket, GradientBuckets, visible_memory
from phalanx.records.spans import SpanRecorder, now_ns

DURING_BACKWARD, AFTER_BACKWARD = WaitPolicy.beside_compute(), WaitPolicy.for_network()
"""Wait policy of the thread while this rank computes, and when this rank waits for the thread."""


class ReduceTimes(NamedTuple):
    """Seconds of one reduction."""

    exposed_s: float
    """From the end of the backward pass until the sums exist."""
    hidden_s: float
    """Of all buckets but the last, in flight before that."""
    last_bucket_s: float
    """Of the last bucket, which nothing can hide: after the end of the backward pass."""


class RankLocalState(NamedTuple):
    """State that a rank keeps between steps beside parameters and optimizer state; it fits the same
    rank among as many."""

    name: str
    """Name of what has this state; it fits nothing of another name."""
    plan: list[list[int]]
    """The parameters' numbers in each bucket."""
    tensors: dict[str, Tensor]


class BucketedGradReducer:
    """Reducer that sums the gradients of a model over the ranks of a group, bucket by bucket.

        with reducer:
            loss.backward()
        times = reducer.times

    In the block gradients are copied into buckets as they become ready; when it ends every
    parameter's `grad` is the sum over the ranks, the same bits on each, and a view of its bucket.
    Backward passes outside only accumulate locally. Buckets follow the order in which gradients
    became ready on rank 0 in the first block, which is summed at its end. A parameter that a rank's
    loss does not reach counts as zeros.

    No rank waits for ever: a missing rank is named at the group's timeout, and a rank that fails in
    its block reports that to its peers. The sums are the same, bit for bit, with `overlaps` and
    without.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        group: Group,
        compressor: Compressor,
        backend: ReduceBackend,
        *,
        largest_bytes: int,
        last_bytes: int | None,
        overlaps: bool,
    ) -> None:
        """group: used by nobody else while a block is open, and closed by this where it `overlaps`;
        backend: the same, for the compressor.
        largest_bytes, last_bytes: of buckets, as `plan_buckets` has it.
        overlaps: a thread sums a bucket as soon as it is complete; else that happens at the end.
        """
        self._parameters, self._group = list(parameters), group
        self._compressor, self._backend = compressor, backend
        self._largest_bytes, self._last_bytes = largest_bytes, last_bytes
        self.overlaps = overlaps
        self.spans: SpanRecorder | None = None
        self.times = ReduceTimes(0.0, 0.0, 0.0)
        self._is_open = False
        self._ready_order: list[nn.Parameter] = []
        self._buckets: GradientBuckets | None = None
        self._thread = CommThread(self._reduce) if overlaps else None
        self._hooks = [
            p.register_post_accumulate_grad_hook(self._mark_param_ready) for p in self._parameters
        ]

    def __enter__(self) -> Self:
        self._is_open = True
        if self._thread is not None:
            self._group.set_wait_policy(DURING_BACKWARD)
        if self._buckets is not None:
            self._buckets.begin()
        return self

    def __exit__(
        self,
        _: type[BaseException] | None,
        error: BaseException | None,
        __: TracebackType | None,
    ) -> None:
        self._is_open = False
        if error is not None:
            self._group.fail(str(error) or type(error).__name__)
            return
        computed_ns = now_ns()
        if self._buckets is None:
            self._follow_ready_order()
        assert self._buckets is not None, "made above"
        completed = self._reduce_remaining(self._buckets.flush())
        self._record_times(completed, computed_ns)

    def plan(self) -> list[list[int]]:
        """Return the parameter numbers of each bucket; a guess before the first block has ended."""
        numbers = {parameter: number for number, parameter in enumerate(self._parameters)}
        if self._buckets is not None:
            return [[numbers[p] for p in bucket.parameters] for bucket in self._buckets.buckets]
        return self._plan_for(range(len(self._parameters) - 1, -1, -1))  # backward goes backwards

    def rank_local_state(self) -> RankLocalState | None:
        """Return the compressor's state, and the buckets to which it belongs; between blocks. None
        where there is no state."""
        if not self._compressor.has_state:
            return None
        plan = self.plan() if self._buckets is not None else []
        return RankLocalState(self._compressor.state_name, plan, self._compressor.state_dict())

    def load_rank_local_state(self, state: RankLocalState) -> bool:
        """Restore a state before the first block; return False, changing nothing, where it does not
        fit. Collective."""
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
        """End the thread; gradients that are views of buckets are dropped. Collective."""
        for hook in self._hooks:
            hook.remove()
        for parameter in self._parameters:
            parameter.grad = None
        if self._thread is not None:
            self._thread.close()
            self._group.close()
        self._buckets = None

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
        if self._thread is None:
            for hook in self._hooks:
                hook.remove()

    def _mark_param_ready(self, parameter: Tensor) -> None:
        """Mark a gradient as ready; called by the backward pass."""
        if not self._is_open:
            return
        assert isinstance(parameter, nn.Parameter)
        if self._buckets is None:
            self._ready_order.append(parameter)
        elif self._thread is not None:
            for bucket in self._buckets.mark_param_ready(parameter):
                self._thread.submit(bucket)

    def _reduce_remaining(self, remaining: Sequence[Bucket]) -> list[CompletedTask[Bucket]]:
        """Reduce the remaining buckets of this block, and return all."""
        if self._thread is not None:
            for bucket in remaining:
                self._thread.submit(bucket)
            self._group.set_wait_policy(AFTER_BACKWARD)
            return self._thread.wait()
        completed = []
        for bucket in remaining:
            began_ns = now_ns()
            self._reduce(bucket)
            completed.append(CompletedTask(bucket, began_ns, now_ns()))
        return completed

    def _reduce(self, bucket: Bucket) -> None:
        self._compressor.reduce(bucket.number, bucket.values, self._backend)

    def _record_times(self, completed: Sequence[CompletedTask[Bucket]], computed_ns: int) -> None:
        *others, last = completed
        hidden_ns = sum(max(0, min(c.ended_ns, computed_ns) - c.began_ns) for c in others)
        last_ns = max(0, last.ended_ns - max(last.began_ns, computed_ns))
        exposed_ns = now_ns() - computed_ns
        self.times = ReduceTimes(exposed_ns / 1e9, hidden_ns / 1e9, last_ns / 1e9)
        if self.spans is not None:
            for bucket, began_ns, ended_ns in completed:
                detail: dict[str, str | int | float] = {"bytes": bucket.values.nbytes}
                name = f"bucket {bucket.number}"
                self.spans.add(name, "network", began_ns, ended_ns, detail)
