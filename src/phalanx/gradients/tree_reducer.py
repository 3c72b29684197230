"""Sums over the micro-batches of a global batch in an order that the ranks do not change."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from phalanx.comm.wait import WaitPolicy
from phalanx.comm.world import World
from phalanx.gradients.bucketed_reducer import (
    AFTER_BACKWARD,
    DURING_BACKWARD,
    largest_bytes_of,
)
from phalanx.gradients.buckets import LAST_BUCKET_DIVISOR, plan_buckets
from phalanx.gradients.comm_thread import CommTasks, times_of
from phalanx.gradients.gradient_buckets import BucketOrder
from phalanx.gradients.reducer import ReduceTimes, dense_gradient
from phalanx.gradients.summation_tree import Exchange, Subtree, SummationTree, plan_exchange
from phalanx.gradients.tree_vector import (
    MessageTreeVector,
    SharedTreeVector,
    make_tree_vectors,
    message_vectors,
)
from phalanx.records.spans import now_ns


class TreeReducer:
    """Reducer of lists of tensors, one list a micro-batch, in the order of a `SummationTree`.

        reducer.begin(owners, leaves)
        for leaf in own_leaves:
            reducer.add(leaf, tensors)
        sums = reducer.reduce()

    The sums have the same bits on every rank, and on any number of ranks. Half types are rounded
    after each addition. Ranks of one node read the sums from one place, where they must not be
    changed.

    Cost: of a micro-batch an addition in place; a rank keeps at most log₂ of its micro-batches
    partial sums. Ranks that hold k of them give k slices to each peer and gather the sums: for
    ranks that share the micro-batches evenly as much as a reduce-scatter and an all-gather.
    """

    def __init__(
        self,
        likes: Sequence[Tensor],
        num_leaves: int,
        world: World | None,
        owners: Sequence[int | None] | None = None,
    ) -> None:
        """likes: tensors of the shapes and types of a list. num_leaves: micro-batches of a full
        global batch. world: None for a single process. owners: of the likes, the only rank that
        needs the sum, None where all do; None: all need all. Collective."""
        self._owners_of_sums, self._num_leaves = owners, num_leaves
        self._world = world if world is not None and world.size > 1 else None
        self._exchange: Exchange | None = None
        self._leaves: frozenset[int] = frozenset()
        self._sums: dict[Subtree, list[Tensor]] = {}
        self._held: set[int] = set()
        self._complex = [place for place, like in enumerate(likes) if like.is_complex()]
        self._likes = self._as_real(likes)
        self._vectors: Sequence[SharedTreeVector | MessageTreeVector] = ()
        self._num_windows = 0

    @property
    def is_finite(self) -> bool | None:
        """Return whether the last sums are, the same on every rank; None where they were not
        checked."""
        return self._vectors[0].is_finite if self._vectors else None

    @property
    def is_divided(self) -> bool:
        """Return whether the last sums that other ranks own are empty tensors here."""
        return any(vector.is_divided for vector in self._vectors)

    def begin(self, owners: Sequence[Collection[int]], leaves: Collection[int]) -> None:
        """Begin a global batch. owners: the micro-batches of each rank; leaves: those that have
        samples; the same on all ranks."""
        self.clear()
        self._leaves = frozenset(leaves)
        self._exchange = self._plan(owners)

    def rejoin(self, world: World, owners: Sequence[Collection[int]]) -> None:
        """Go on with the ranks that are left, with what this one has added. owners: as of
        `begin`; a leaf that was added stays with who added it."""
        self._world = world if world.size > 1 else None
        self._vectors, self._num_windows = (), 0  # their memory lives as long as the last sums
        if self._exchange is not None:
            self._exchange = self._plan(owners)

    def missing(self, leaves: Collection[int]) -> list[int]:
        """Return which of `leaves` have samples and were not added in this step."""
        return sorted(self._leaves.intersection(leaves) - self._held)

    def clear(self) -> None:
        """Forget what was added, once its sums are known."""
        self._sums.clear()
        self._held.clear()
        self._leaves, self._exchange = frozenset(), None

    def _plan(self, owners: Sequence[Collection[int]]) -> Exchange:
        return plan_exchange(tuple(map(tuple, owners)), self._leaves, self._num_leaves)

    @torch.no_grad()
    def add(self, leaf: int, tensors: list[Tensor]) -> None:
        """Add what micro-batch `leaf` has made, and keep it: the tensors are changed."""
        assert self._exchange is not None, "begin() comes first"
        add_leaf(self._exchange.tree, self._sums, leaf, self._as_real(tensors))
        self._held.add(leaf)

    @torch.no_grad()
    def reduce(self) -> list[Tensor]:
        """Return the sums over all micro-batches, which last until the next call. Collective.

        Raises: WaitTimeoutError and the like, naming the ranks that did not come.
        """
        exchange = self._exchange
        assert exchange is not None, "begin() comes first"
        if self._world is None:
            (sums,) = self._sums.values()
            return self._as_complex(sums)
        if not self._vectors or exchange.num_terms > self._num_windows:
            self._close_vectors()
            self._num_windows = max(self._world.size, exchange.num_terms)
            self._vectors = make_tree_vectors(
                self._world, self._likes, self._num_windows, self._owners_of_sums
            )
        own = [self._sums[node] for node in exchange.nodes[self._world.rank]]
        if len(self._vectors) == 1:  # of all places, in their order
            return self._as_complex(self._vectors[0].reduce(own, exchange))
        found: dict[int, Tensor] = {}
        for vector in self._vectors:
            typed = [[tensors[place] for place in vector.places] for tensors in own]
            found.update(zip(vector.places, vector.reduce(typed, exchange), strict=True))
        return self._in_order(found)

    def close(self) -> None:
        """Drop the memory of the sums. Collective."""
        self.clear()
        self._close_vectors()

    def _close_vectors(self) -> None:
        for vector in self._vectors:
            vector.close()
        self._vectors = ()

    def _as_real(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """View complex tensors as real: PyTorch's sum of two complex ones multiplies by one, which
        changes signs of zeros and infinite parts, where other kernels add."""
        if not self._complex:
            return list(tensors)
        return [
            torch.view_as_real(each.detach().resolve_conj()) if each.is_complex() else each
            for each in tensors
        ]

    def _in_order(self, found: Mapping[int, Tensor]) -> list[Tensor]:
        """Return the sums of all places."""
        return self._as_complex([found[place] for place in sorted(found)])

    def _as_complex(self, tensors: list[Tensor]) -> list[Tensor]:
        viewed = list(tensors)
        for place in self._complex:
            viewed[place] = torch.view_as_complex(viewed[place])
        return viewed


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
        left = {like: place for place, like in enumerate(likes)}
        places = [[left.pop(one) for one in members] for members in self._members]
        places.append(list(left.values()))  # hooks do not tell of these
        owners = [None] * len(likes)
        self._vectors = [
            vector
            for some in places
            for vector in message_vectors(some, self._likes, self._group, owners)
        ]
        self._order = BucketOrder(self._members)
        self._found: dict[int, Tensor] = {}
        """Sums by their place in the lists."""
        self._leaf: int | None = None  # the last of this rank
        self._is_open = False
        self._computed_ns = 0
        self._thread = CommTasks(self._add_and_reduce, on_thread=True)
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
        for bucket in (*self._order.flush(), *range(len(self._members), len(self._vectors))):
            own = [tensors[place] for place in self._vectors[bucket].places]
            self._thread.submit(_Addition(bucket, own))

    def reduce(self) -> list[Tensor]:
        if self._leaf is None:
            for bucket in range(len(self._vectors)):
                self._thread.submit(_Addition(bucket, None))
        self._group.set_wait_policy(AFTER_BACKWARD)
        self.times = times_of(self._thread.wait(), self._computed_ns)
        return self._in_order(self._found)

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
        exchange, vector = self._exchange, self._vectors[addition.bucket]
        assert exchange is not None, "begin() comes first"
        sums = {node: [some[place] for place in vector.places] for node, some in self._sums.items()}
        if addition.tensors is not None:
            assert self._leaf is not None, "of the last pass"
            add_leaf(exchange.tree, sums, self._leaf, self._as_real(addition.tensors))
        own = [sums[node] for node in exchange.nodes[self._group.rank]]
        self._found.update(zip(vector.places, vector.reduce(own, exchange), strict=True))


def add_leaf(
    tree: SummationTree, sums: dict[Subtree, list[Tensor]], leaf: int, tensors: list[Tensor]
) -> None:
    """Add the tensors of a leaf, which are changed, to the partial sums that a rank has."""
    node, root = tree.climb(Subtree(0, leaf)), tree.root
    while node != root and node.sibling in sums:
        other = sums.pop(node.sibling)
        torch._foreach_add_(other, tensors)  # either order gives the same bits
        tensors, node = other, tree.climb(node.parent)
    sums[node] = tensors
