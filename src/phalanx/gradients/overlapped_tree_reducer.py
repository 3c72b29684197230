"""Sums in the order of a tree, bucket by bucket, while the last backward pass of a step runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from torch import Tensor

from phalanx.comm.wait import WaitPolicy
from phalanx.comm.world import World
from phalanx.gradients.bucketed_reducer import (
    AFTER_BACKWARD,
    DURING_BACKWARD,
    largest_bytes_of,
)
from phalanx.gradients.buckets import LAST_BUCKET_DIVISOR, plan_buckets
from phalanx.gradients.comm_thread import CommThread, times_of
from phalanx.gradients.gradient_buckets import BucketOrder
from phalanx.gradients.reducer import ReduceTimes, dense_gradient
from phalanx.gradients.tree_reducer import TreeReducer, add_leaf
from phalanx.gradients.tree_vector import MessageTreeVector
from phalanx.records.spans import now_ns


class _Addition(NamedTuple):
    """Gradients of a bucket, of a rank's last micro-batch; None: it has no samples."""

    bucket: int
    tensors: list[Tensor] | None


class OverlappedTreeReducer(TreeReducer):
    """Reducer with the same bits, whose ranks sum the gradients of a bucket over messages as soon
    as all of them have been through it:

        reducer.begin(owners, leaves)
        ...  # reducer.add(leaf, tensors) for each of this rank's micro-batches but the last
        with reducer.last_pass(leaf):
            loss.backward()
        reducer.add(leaf, tensors)
        sums = reducer.reduce()

    Only the last addition of a rank can be hidden, and the exchange: buckets wait until the rank
    has computed its other micro-batches. No rank may be lost.
    """

    times = ReduceTimes(0.0)
    """Times of the last `reduce`."""

    def __init__(
        self,
        likes: Sequence[Tensor],
        parameters: Sequence[Tensor],
        num_leaves: int,
        world: World,
    ) -> None:
        """likes, num_leaves: as `TreeReducer`. parameters: those of the likes whose gradients stand
        in their places in the lists. Collective."""
        super().__init__(likes, num_leaves, world)
        policy = WaitPolicy.for_network()
        self._group = world.group.subgroup(range(world.size), name="gradients", policy=policy)
        largest = largest_bytes_of(world, sum(one.nbytes for one in parameters), overlaps=True)
        plan = plan_buckets(
            [parameter.nbytes for parameter in parameters],
            [str(parameter.dtype) for parameter in parameters],
            range(len(parameters) - 1, -1, -1),  # a backward pass goes backwards
            largest,
            largest // LAST_BUCKET_DIVISOR,
        )
        self._members = [[parameters[number] for number in numbers] for numbers in plan]
        places = {like: place for place, like in enumerate(likes)}
        self._places = [[places.pop(one) for one in members] for members in self._members]
        self._places.append(list(places.values()))  # hooks do not tell of these
        self._vectors = [
            MessageTreeVector([self._likes[place] for place in own], self._group)
            for own in self._places
        ]
        self._order = BucketOrder(self._members)
        self._found: dict[int, Tensor] = {}
        """Sums by their place in the lists."""
        self._leaf: int | None = None  # the last of this rank
        self._is_open = False
        self._computed_ns = 0
        self._thread = CommThread(self._add_and_reduce)
        self._hooks = [one.register_post_accumulate_grad_hook(self._mark) for one in parameters]

    def begin(self, owners: Sequence[Collection[int]], leaves: Collection[int]) -> None:
        super().begin(owners, leaves)
        self._order.begin()
        self._leaf = None

    @contextmanager
    def last_pass(self, leaf: int | None) -> Iterator[None]:
        """Sum what becomes ready in the block: the last backward pass of this rank in the step, for
        micro-batch `leaf`; None: for one without samples."""
        self._leaf, self._is_open = leaf, leaf is not None
        self._group.set_wait_policy(DURING_BACKWARD)
        try:
            yield
        except BaseException as error:
            self._group.fail(str(error) or type(error).__name__)
            raise
        finally:
            self._is_open = False
            self._computed_ns = now_ns()

    def add(self, leaf: int, tensors: list[Tensor]) -> None:
        if leaf != self._leaf:
            super().add(leaf, tensors)
            return
        self._held.add(leaf)
        for bucket in (*self._order.flush(), len(self._members)):
            self._thread.submit(_Addition(bucket, [tensors[at] for at in self._places[bucket]]))

    def reduce(self) -> list[Tensor]:
        if self._leaf is None:
            for bucket in range(len(self._places)):
                self._thread.submit(_Addition(bucket, None))
        self._group.set_wait_policy(AFTER_BACKWARD)
        self.times = times_of(self._thread.wait(), self._computed_ns)
        return self._as_complex([self._found[place] for place in sorted(self._found)])

    def close(self) -> None:
        """Drop the memory of the sums, and end the thread. Collective."""
        for hook in self._hooks:
            hook.remove()
        self._thread.close()
        self._found.clear()
        super().close()
        self._group.close()

    def _mark(self, parameter: Tensor) -> None:
        if self._is_open:
            for bucket in self._order.mark_ready(parameter):
                gradients = [dense_gradient(one) for one in self._members[bucket]]
                self._thread.submit(_Addition(bucket, gradients))

    def _add_and_reduce(self, addition: _Addition) -> None:
        exchange, places = self._exchange, self._places[addition.bucket]
        assert exchange is not None, "begin() comes first"
        sums = {node: [some[place] for place in places] for node, some in self._sums.items()}
        if addition.tensors is not None:
            assert self._leaf is not None, "of the last pass"
            add_leaf(exchange.tree, sums, self._leaf, self._as_real(addition.tensors))
        own = [sums[node] for node in exchange.nodes[self._group.rank]]
        found = self._vectors[addition.bucket].reduce(own, exchange)
        self._found.update(zip(places, found, strict=True))
