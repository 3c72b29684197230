"""Bucketed reduction of gradients, during the backward pass or after it."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple, Self

from torch import Tensor, nn

from phalanx.comm.group import Group
from phalanx.comm.wait import WaitPolicy
from phalanx.parallel.buckets import plan_buckets
from phalanx.parallel.carrier import Carried, Carrier
from phalanx.parallel.compression.compressor import Compressor, Ranks
from phalanx.parallel.gradient_buckets import Bucket, GradientBuckets, visible_memory
from phalanx.parallel.step import OwnState
from phalanx.records.spans import SpanRecorder, now_ns

BESIDE, AFTER = WaitPolicy.beside_arithmetic(), WaitPolicy.for_network()
"""How the thread waits while this rank computes, and when it waits for the thread."""


class ExchangeTimes(NamedTuple):
    """Seconds of one reduction."""

    exposed_s: float
    """From the end of the backward pass until the sums were there."""
    hidden_s: float
    """That all buckets but the last were on their way before."""
    last_bucket_s: float
    """Of the last bucket, which nothing can hide: after the end of the backward pass."""


class Exchange:
    """Reducer that sums the gradients of a model over the ranks of a group, bucket by bucket.

        with exchange:
            loss.backward()
        times = exchange.times

    In the block gradients are taken as they come; when it ends every parameter's `grad` is the sum
    over the ranks, the same bits on each, and a view of its bucket. Backward passes outside only
    add to this rank's gradients. Buckets follow the order in which gradients came on rank 0 in the
    first block, which is summed at its end. What a rank's loss does not reach counts as zeros.

    Whatever the ranks do, none waits for ever: who does not come is named by the group's timeout,
    and a rank that fails in its block tells the others. The sums are the same, bit for bit, with
    `overlaps` and without.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        group: Group,
        compressor: Compressor,
        ranks: Ranks,
        *,
        largest_bytes: int,
        last_bytes: int | None,
        overlaps: bool,
    ) -> None:
        """group: used by nobody else while a block is open, and closed by this where it `overlaps`;
        ranks: the same, for the compressor.
        largest_bytes, last_bytes: of buckets, as `plan_buckets` has it.
        overlaps: a thread sums a bucket as soon as it is complete; else that happens at the end.
        """
        self._parameters, self._group = list(parameters), group
        self._compressor, self._ranks = compressor, ranks
        self._largest_bytes, self._last_bytes = largest_bytes, last_bytes
        self.overlaps = overlaps
        self.spans: SpanRecorder | None = None
        self.times = ExchangeTimes(0.0, 0.0, 0.0)
        self._is_open = False
        self._came: list[nn.Parameter] = []
        self._buckets: GradientBuckets | None = None
        self._carrier = Carrier(self._reduce) if overlaps else None
        self._hooks = [p.register_post_accumulate_grad_hook(self._take) for p in self._parameters]

    def __enter__(self) -> Self:
        self._is_open = True
        if self._carrier is not None:
            self._group.wait_by(BESIDE)
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
            self._follow_order()
        assert self._buckets is not None, "made above"
        done = self._finish(self._buckets.rest())
        self._note(done, computed_ns)

    def plan(self) -> list[list[int]]:
        """Return the parameter numbers of each bucket; a guess before the first block has ended."""
        numbers = {parameter: number for number, parameter in enumerate(self._parameters)}
        if self._buckets is not None:
            return [[numbers[p] for p in bucket.parameters] for bucket in self._buckets.buckets]
        return self._planned(range(len(self._parameters) - 1, -1, -1))  # backward goes backwards

    def own_state(self) -> OwnState | None:
        """Return the compressor's state, and the buckets to which it belongs; between blocks. None
        where there is no state."""
        if not self._compressor.keeps:
            return None
        plan = self.plan() if self._buckets is not None else []
        return OwnState(self._compressor.words, plan, self._compressor.kept())

    def go_on_from(self, state: OwnState) -> bool:
        """Restore a state before the first block; return False, changing nothing, where it does not
        fit. Collective."""
        order = [number for bucket in state.plan for number in bucket]
        fits = (
            state.words == self._compressor.words
            and sorted(order) == list(range(len(self._parameters)))
            and self._planned(order) == state.plan
        )
        if fits:
            self._make_buckets(state.plan)
            self._compressor.restore(state.tensors)
        return fits

    def close(self) -> None:
        """End the thread; gradients that are views of buckets are dropped. Collective."""
        for hook in self._hooks:
            hook.remove()
        for parameter in self._parameters:
            parameter.grad = None
        if self._carrier is not None:
            self._carrier.close()
            self._group.close()
        self._buckets = None

    def _planned(self, order: Sequence[int]) -> list[list[int]]:
        return plan_buckets(
            [p.nbytes for p in self._parameters],
            [str(p.dtype) for p in self._parameters],
            order,
            self._largest_bytes,
            self._last_bytes,
        )

    def _follow_order(self) -> None:
        """Make the buckets in the order in which rank 0's gradients became ready. Not counted as
        traffic: it happens once."""
        numbers = {parameter: number for number, parameter in enumerate(self._parameters)}
        traffic, self._group.traffic = self._group.traffic, None
        came = self._group.share([numbers[p] for p in dict.fromkeys(self._came)])
        self._group.traffic = traffic
        unused = sorted(set(numbers.values()).difference(came))
        self._make_buckets(self._planned([*came, *unused]))

    def _make_buckets(self, plan: Sequence[Sequence[int]]) -> None:
        self._buckets = GradientBuckets(self._parameters, plan, visible_memory(self._group))
        for bucket in self._buckets.buckets:
            self._compressor.prepare(bucket.number, bucket.shapes)
        self._came.clear()
        if self._carrier is None:
            for hook in self._hooks:
                hook.remove()

    def _take(self, parameter: Tensor) -> None:
        """Mark a gradient as ready; called by the backward pass."""
        if not self._is_open:
            return
        assert isinstance(parameter, nn.Parameter)
        if self._buckets is None:
            self._came.append(parameter)
        elif self._carrier is not None:
            for bucket in self._buckets.take(parameter):
                self._carrier.hand_over(bucket)

    def _finish(self, rest: Sequence[Bucket]) -> list[Carried[Bucket]]:
        """Reduce the remaining buckets of this block, and return all."""
        if self._carrier is not None:
            for bucket in rest:
                self._carrier.hand_over(bucket)
            self._group.wait_by(AFTER)
            return self._carrier.wait()
        done = []
        for bucket in rest:
            began_ns = now_ns()
            self._reduce(bucket)
            done.append(Carried(bucket, began_ns, now_ns()))
        return done

    def _reduce(self, bucket: Bucket) -> None:
        self._compressor.reduce(bucket.number, bucket.values, self._ranks)

    def _note(self, done: Sequence[Carried[Bucket]], computed_ns: int) -> None:
        *others, last = done
        hidden_ns = sum(max(0, min(c.ended_ns, computed_ns) - c.began_ns) for c in others)
        last_ns = max(0, last.ended_ns - max(last.began_ns, computed_ns))
        exposed_ns = now_ns() - computed_ns
        self.times = ExchangeTimes(exposed_ns / 1e9, hidden_ns / 1e9, last_ns / 1e9)
        if self.spans is not None:
            for bucket, began_ns, ended_ns in done:
                detail: dict[str, str | int | float] = {"bytes": bucket.values.nbytes}
                name = f"bucket {bucket.number}"
                self.spans.add(name, "network", began_ns, ended_ns, detail)
